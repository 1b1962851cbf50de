#include "gradweave/cost.h"

#include <gtest/gtest.h>

#include "gradweave/error.h"

namespace gradweave {
namespace {

Workload two_layers() {
  return {.name = "two",
          .layers = {
              {"a",
               1000,
               2000,
               std::nullopt,
               {{"a.weight", 1000, DType::kFloat32}, {"a.bias", 10, DType::kFloat32}}},
              {"b", 3000, 4000, 7001, {{"b.weight", 60, DType::kFloat32}, {"b.bias", 40, DType::kFloat16}}}}};
}

Cluster two_links() {
  return {.workers = 4, .links = {{"fast", 5000, {8, 4}, 1, {1, 0}}, {"slow", 100, {25, 4}, 1, {165, 2}}}};
}

TEST(WorkloadIndex, GivesTimesFromTheStartOfTheIteration) {
  const WorkloadIndex index(two_layers());
  EXPECT_EQ(index.forward_start, (std::vector<Nanoseconds>{0, 1000}));
  EXPECT_EQ(index.backward_start, (std::vector<Nanoseconds>{8000, 4000}));
  EXPECT_EQ(index.backward_end, (std::vector<Nanoseconds>{10000, 8000}));
  EXPECT_EQ(index.compute_total, 10000);
  EXPECT_EQ(index.total_bytes, 1010 * 4 + 60 * 4 + 40 * 2);
  EXPECT_EQ(index.tensors[3].layer_offset, 60);
}

TEST(CostModel, ChargesStartUpOnceForAFusedMessage) {
  const CostModel model(two_layers(), two_links());
  const std::vector<Slice> both = {{0, 0, 1000}, {1, 0, 10}};
  EXPECT_EQ(model.cost(0, Collective::kAllReduce, both).startup, 5000);
  EXPECT_EQ(model.all_reduce(0, both), 5000 + 3232);           // 4040 bytes * 0.8 ns
  EXPECT_EQ(model.all_reduce(1, Slice{1, 0, 10}), 100 + 100);  // 40 bytes * 2.5 ns
}

TEST(CostModel, SharesGivenTimesWithoutStartUp) {
  const CostModel model(two_layers(), two_links());
  const std::vector<Slice> whole = {{2, 0, 60}, {3, 0, 40}};
  EXPECT_EQ(model.all_reduce(0, whole[0]), 7001 * 60 / 100);
  EXPECT_EQ(model.all_reduce(0, whole[0]) + model.all_reduce(0, whole[1]), 7001);
  EXPECT_EQ(model.cost(1, Collective::kAllReduce, whole).startup, 0);
  EXPECT_EQ(model.all_reduce(1, whole), 11552);  // ceil(7001 * 1.65)
}

TEST(CostModel, WhatParametersOf16BitsHaveGainedIsFloat32) {
  Workload floats = two_layers(), halves = two_layers();
  floats.layers[1].tensors[1].dtype = DType::kFloat32;
  for (Tensor& tensor : halves.layers[0].tensors) tensor.dtype = DType::kBFloat16;
  const std::vector<Slice> message = {{0, 0, 1000}, {1, 0, 10}};
  const auto cost = [&](const Workload& workload, const Compression& compression, bool outer) {
    const CostModel model(workload, two_links(), compression, Payload::kParameter, outer);
    EXPECT_EQ(model.all_reduce_of(0, model.load(0, message)).total(), model.all_reduce(0, message));
    return model.all_reduce(0, message);
  };
  EXPECT_EQ(cost(halves, {}, true), cost(floats, {}, true));
  EXPECT_EQ(cost(halves, {}, false), 5000 + 1616);  // 2020 bytes
  const Compression top_k{.name = "top_k", .parameters = {{"density", 0.1}}};
  EXPECT_EQ(cost(halves, top_k, false), cost(floats, top_k, false));
  const auto given = [&](const Workload& workload, bool outer) {
    return CostModel(workload, two_links(), {}, Payload::kParameter, outer).all_reduce(0, Slice{3, 0, 40});
  };
  EXPECT_EQ(given(two_layers(), true), 2 * given(two_layers(), false));  // that time is of 16 bits
  EXPECT_EQ(given(floats, true), given(floats, false));
}

TEST(CostModel, ReduceScatterAndAllGatherCostTheAllReduce) {
  const CostModel model(two_layers(), two_links());
  for (std::size_t tensor = 0; tensor < 4; ++tensor) {
    const std::vector<Slice> slices = {{tensor, 0, model.index().tensors[tensor].numel}};
    const OpCost first = model.cost(0, Collective::kReduceScatter, slices);
    const OpCost second = model.cost(0, Collective::kAllGather, slices);
    EXPECT_EQ(first.total() + second.total(), model.all_reduce(0, slices));
    EXPECT_EQ(first.total(), model.all_reduce(0, slices) / 2);
  }
}

TEST(CostModel, HalvesThatWereMeasuredCostWhatTheyCost) {
  Cluster cluster = two_links();
  const std::string without = hash_of(cluster);
  cluster.links[1].halves = {{30, {1, 3}}, {70, {2, 3}}};  // 1 and 2 ns a byte
  EXPECT_NE(hash_of(cluster), without);
  const CostModel model(two_layers(), cluster);
  const std::vector<Slice> slices = {{1, 0, 10}};  // 40 bytes
  EXPECT_EQ(model.cost(1, Collective::kReduceScatter, slices).startup, 30);
  EXPECT_EQ(model.cost(1, Collective::kReduceScatter, slices).work, 40);
  EXPECT_EQ(model.cost(1, Collective::kAllGather, slices).total(), 70 + 80);
  EXPECT_EQ(model.all_reduce(1, slices), 100 + 100);
  // A time that the workload gives is halved all the same.
  const std::vector<Slice> given = {{2, 0, 60}, {3, 0, 40}};
  EXPECT_EQ(model.cost(1, Collective::kReduceScatter, given).total(), 11552 / 2);
  EXPECT_EQ(model.cost(1, Collective::kAllGather, given).total(), 11552 / 2);

  const Cluster more = scaled_to(cluster, 16);
  EXPECT_EQ(more.links[1].halves->all_gather, (Line{350, {25, 4}}));  // 2*15 / (2*3); (15/16) / (3/4)
  const Cluster faster = with_bandwidth(cluster, 10);
  EXPECT_DOUBLE_EQ(to_double(faster.links[1].halves->reduce_scatter.us_per_byte),
                   0.4 * to_double(faster.links[1].us_per_byte));
  cluster.links[1].halves->all_gather.startup_ns = -1;
  try {
    check(cluster);
    FAIL() << "a negative start-up must be refused";
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.where(), "links[1].all_gather.startup_us");
  }
}

TEST(Cluster, OneWorkerCommunicatesWithNobody) {
  const Cluster alone = scaled_to(two_links(), 1);
  check(alone);
  const CostModel model(two_layers(), alone);
  for (std::size_t link = 0; link < 2; ++link) {
    for (std::size_t t = 0; t < 4; ++t) EXPECT_EQ(model.all_reduce(link, {t, 0, 1}), 0);
  }
  Cluster several = two_links();
  several.links[0].relative_time = {0, 0};
  EXPECT_THROW(check(several), InvalidInput);
}

TEST(Cluster, ScalesWithTheNumberOfWorkers) {
  Cluster cluster = two_links();
  const Cluster ring = scaled_to(cluster, 16);
  EXPECT_EQ(ring.links[0].startup_ns, 25000);             // 2*15 / (2*3)
  EXPECT_EQ(ring.links[0].us_per_byte, (Decimal{1, 3}));  // (15/16) / (3/4) = 1.25
  cluster.startup_growth = StartupGrowth::kLog;
  EXPECT_EQ(scaled_to(cluster, 16).links[0].startup_ns, 10000);
  cluster.startup_growth = StartupGrowth::kConstant;
  EXPECT_EQ(scaled_to(cluster, 16).links[0].startup_ns, 5000);
  cluster.workers = 1;
  EXPECT_THROW(scaled_to(cluster, 2), InvalidInput);
}

TEST(Cluster, TakesABandwidthOnTheWire) {
  // A ring of 4 moves 1.5 bytes for each byte: 1.5 * 8 / 10 Gb/s is 1.2 ns; the slow link is 3.125 times slower.
  const Cluster changed = with_bandwidth(two_links(), 10);
  EXPECT_EQ(changed.links[0].us_per_byte, (Decimal{12, 4}));
  EXPECT_EQ(changed.links[1].us_per_byte, (Decimal{375, 5}));
  EXPECT_EQ(changed.links[0].relative_time, (Decimal{15, 1}));
  EXPECT_EQ(changed.links[1].relative_time, (Decimal{2475, 3}));
  EXPECT_EQ(changed.links[0].startup_ns, 5000);
  EXPECT_THROW(with_bandwidth(scaled_to(two_links(), 1), 10), InvalidInput);
}

TEST(Check, NamesTheKeyOfTheFault) {
  Workload workload = two_layers();
  workload.layers[1].tensors[1].name = "a.weight";
  try {
    check(workload);
    FAIL() << "a repeated name must be refused";
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.where(), "layers[1].tensors[1].name");
  }
  Cluster cluster = two_links();
  cluster.links[1].name = "fast";
  EXPECT_THROW(check(cluster), InvalidInput);
}

TEST(Workload, SlowestTakesTheMaximumOfEachLayer) {
  Workload other = two_layers();
  other.layers[0].forward_ns = 9000;
  other.layers[1].backward_ns = 1;
  const Workload slowest = slowest_of({two_layers(), other});
  EXPECT_EQ(slowest.layers[0].forward_ns, 9000);
  EXPECT_EQ(slowest.layers[1].backward_ns, 4000);
  other.layers[0].tensors.pop_back();
  EXPECT_THROW(slowest_of({two_layers(), other}), InvalidInput);
}

}  // namespace
}  // namespace gradweave
