#include <gtest/gtest.h>

#include <map>
#include <set>

#include "gradweave/cost.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "simulate/table2.h"

namespace gradweave {
namespace {

// Four layers, 1 ms of forward and 2 ms of backward each: 12 ms of computation.
Workload small_workload() {
  Workload workload{.name = "small"};
  for (int l = 0; l < 4; ++l) {
    const std::string name = "layer" + std::to_string(l);
    workload.layers.push_back({.name = name, .forward_ns = 1'000'000, .backward_ns = 2'000'000});
    workload.layers.back().tensors = {{name + ".weight", 1'000'000 * (l + 1), DType::kFloat32},
                                      {name + ".bias", 100, DType::kFloat32}};
  }
  return workload;
}

Cluster cluster_of(std::vector<Link> links) {
  Cluster cluster{.workers = 2};
  cluster.links = std::move(links);
  return cluster;
}

Link link(std::string name, Nanoseconds startup_ns, Decimal us_per_byte) {
  return {.name = std::move(name), .startup_ns = startup_ns, .us_per_byte = us_per_byte};
}

Plan plan_for(const Workload& workload, const Cluster& cluster,
              const std::map<std::string, std::string>& options = {}) {
  const PlanResult result = make_plan("delayed_averaging", workload, cluster, options);
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&result))
    throw std::runtime_error(infeasible->reason);
  return std::get<Plan>(result);
}

std::vector<Slice> slices_of(const Plan& plan, const Op& op, const CostModel& model) {
  std::vector<Slice> slices;
  for (std::int32_t b : op.blocks) {
    const Block& block = plan.blocks[static_cast<std::size_t>(b)];
    slices.push_back({*model.index().find_tensor(block.tensor), block.begin, block.end});
  }
  return slices;
}

// Expects that the ops which each link gets at one iteration's end are through within the iterations up to
// their apply, that each is corrected exactly once, and that a period averages every block.
void expect_hidden(const Plan& plan, const Workload& workload, const Cluster& cluster) {
  const CostModel model(workload, cluster);
  const std::int64_t period = static_cast<std::int64_t>(plan.period.size());
  std::set<std::int32_t> averaged;
  for (std::int64_t i = 0; i < period; ++i) {
    std::map<std::string, Nanoseconds> busy;
    for (const Op& op : plan.period[static_cast<std::size_t>(i)].ops) {
      EXPECT_EQ(op.payload, Payload::kParameter);
      EXPECT_EQ(op.merges, std::vector<std::int32_t>{0});
      EXPECT_EQ(op.release.point.kind, PointKind::kIterationEnd);
      averaged.insert(op.blocks.begin(), op.blocks.end());
      std::size_t k = *find_link(cluster, op.link);
      busy[op.link] += model.all_reduce(k, slices_of(plan, op, model));
      std::int64_t width = 0;
      for (std::int64_t j = 1; j <= period && width == 0; ++j) {
        for (const Apply& apply : plan.period[static_cast<std::size_t>((i + j) % period)].applies) {
          if (apply.source == Source::kAveragedParameter && apply.merges[0] == -j &&
              apply.blocks == op.blocks)
            width = j;
        }
      }
      ASSERT_GT(width, 0) << "never corrected";
      EXPECT_LE(busy[op.link], width * model.index().compute_total);
    }
  }
  EXPECT_EQ(averaged.size(), plan.blocks.size());
}

TEST(DelayedAveraging, TakesTheSmallestPeriodThatHidesEverything) {
  // 40 MB at 1 ns per byte: 40 ms against 12 ms of computation.
  const Cluster cluster = cluster_of({link("net", 0, {1, 3})});
  const Plan plan = plan_for(small_workload(), cluster, {{"frequent_share", "0"}});
  EXPECT_EQ(plan.period.size(), 4u);
  expect_hidden(plan, small_workload(), cluster);
}

TEST(DelayedAveraging, SpreadsTheBytesEvenlyOverTheIterations) {
  const Cluster cluster = cluster_of({link("net", 10'000, {1, 3})});
  const Plan plan = plan_for(small_workload(), cluster, {{"frequent_share", "0"}});
  const CostModel model(small_workload(), cluster);
  for (const Iteration& iteration : plan.period) {
    std::int64_t bytes = 0;
    for (const Op& op : iteration.ops) bytes += model.bytes(slices_of(plan, op, model));
    EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(model.index().total_bytes) / 4, 50'000);
  }
}

TEST(DelayedAveraging, UsesEveryLinkAtItsOwnSpeed) {
  // 1 and 1/3 byte per ns: 12 ms carry 12 MB and 4 MB; 40 MB need 3 iterations of 16 MB.
  const Cluster cluster = cluster_of({link("fast", 0, {1, 3}), link("slow", 0, {3, 3})});
  const Plan plan = plan_for(small_workload(), cluster);
  EXPECT_EQ(plan.period.size(), 3u);
  expect_hidden(plan, small_workload(), cluster);
}

TEST(DelayedAveraging, SmallTensorsAreAveragedInEveryIteration) {
  const Cluster cluster = cluster_of({link("net", 10'000, {1, 3})});
  const Plan plan = plan_for(small_workload(), cluster);
  ASSERT_EQ(plan.period.size(), 4u);
  expect_hidden(plan, small_workload(), cluster);
  for (const Iteration& iteration : plan.period) {
    int biases = 0;
    for (const Op& op : iteration.ops) {
      for (std::int32_t b : op.blocks)
        biases += plan.blocks[static_cast<std::size_t>(b)].tensor.ends_with(".bias");
    }
    EXPECT_EQ(biases, 4);
  }
}

TEST(DelayedAveraging, LetsAMessageTakeSeveralIterationsWhereAStartUpFillsOne) {
  // Start-up 20 ms: in 12 ms nothing can be sent; one message of all takes 60.0016 ms.
  const Cluster cluster = cluster_of({link("far", 20'000'000, {1, 3})});
  const Plan plan = plan_for(small_workload(), cluster);
  EXPECT_EQ(plan.period.size(), 6u);
  expect_hidden(plan, small_workload(), cluster);
}

TEST(DelayedAveraging, SpreadsTheBytesEvenlyOverSlotsOfSeveralIterations) {
  // 30 ms and a start-up of 7.2 ms: one message takes 4 iterations, two take 2 each, four don't fit.
  const Cluster cluster = cluster_of({link("net", 7'200'000, {75, 5})});
  const Plan plan = plan_for(small_workload(), cluster);
  const CostModel model(small_workload(), cluster);
  ASSERT_EQ(plan.period.size(), 4u);
  expect_hidden(plan, small_workload(), cluster);
  for (const std::size_t i : {0, 2}) {
    ASSERT_EQ(plan.period[i].ops.size(), 1u);
    EXPECT_NEAR(static_cast<double>(model.bytes(slices_of(plan, plan.period[i].ops[0], model))), 20e6, 5e4);
  }
}

TEST(DelayedAveraging, HeadroomLeavesLinksIdle) {
  // 40 ms in 12 ms iterations, of which 7.992 ms may be used.
  const Cluster cluster = cluster_of({link("net", 0, {1, 3})});
  const Plan plan = plan_for(small_workload(), cluster, {{"headroom", "0.334"}});
  EXPECT_EQ(plan.period.size(), 6u);  // 40.0016 ms
  const CostModel model(small_workload(), cluster);
  for (const Iteration& iteration : plan.period) {
    Nanoseconds busy = 0;
    for (const Op& op : iteration.ops) busy += model.all_reduce(0, slices_of(plan, op, model));
    EXPECT_LE(busy, 7'992'000);
  }
}

TEST(DelayedAveraging, KeepsDtypesApart) {
  Workload workload = small_workload();
  workload.layers[1].tensors[0].dtype = DType::kBFloat16;
  workload.layers[3].tensors[1].dtype = DType::kFloat64;
  const Cluster cluster = cluster_of({link("net", 10'000, {1, 3})});
  const Plan plan = plan_for(workload, cluster);
  const CostModel model(workload, cluster);
  for (const Iteration& iteration : plan.period) {
    for (const Op& op : iteration.ops) {
      for (const Slice& slice : slices_of(plan, op, model)) {
        EXPECT_EQ(model.index().tensors[slice.tensor].dtype,
                  model.index().tensors[slices_of(plan, op, model)[0].tensor].dtype);
      }
    }
  }
  expect_hidden(plan, workload, cluster);
}

TEST(DelayedAveraging, AGivenPeriodThatIsTooShortIsPlannedWithTheLeastWait) {
  const Cluster cluster = cluster_of({link("net", 0, {1, 3})});
  const Plan plan = plan_for(small_workload(), cluster, {{"period", "2"}});
  const CostModel model(small_workload(), cluster);
  for (const Iteration& iteration : plan.period) {
    Nanoseconds busy = 0;
    for (const Op& op : iteration.ops) busy += model.all_reduce(0, slices_of(plan, op, model));
    EXPECT_LE(busy, model.index().total_bytes / 2 + 4);
  }
}

// 40.0016 MB at 1 and 1/3 byte per ns at once: 30 ms once in 2 iterations.
TEST(LocalSgd, AllLinksAreThroughTogether) {
  const Cluster cluster = cluster_of({link("fast", 0, {1, 3}), link("slow", 0, {3, 3})});
  const Plan plan = std::get<Plan>(make_plan("local_sgd", small_workload(), cluster, {{"period", "2"}}));
  EXPECT_NEAR(simulate(plan, small_workload(), cluster).exposed_ns, 15'000'600, 10);
}

// DeFT's Table II: 130285 us of computation, 247725 us of communication.
TEST(DelayedAveraging, HidesTableTwoInTwoIterations) {
  const auto iteration_us = [](std::string_view scheme, const std::map<std::string, std::string>& options) {
    const Plan plan = std::get<Plan>(make_plan(scheme, table2_workload(), table2_cluster(), options));
    return simulate(plan, table2_workload(), table2_cluster()).iteration_ns() / 1000;
  };
  EXPECT_EQ(plan_for(table2_workload(), table2_cluster()).period.size(), 2u);
  EXPECT_EQ(iteration_us("delayed_averaging", {}), 130285);
  EXPECT_EQ(iteration_us("delayed_averaging", {{"period", "1"}}), 247725);
  EXPECT_EQ(iteration_us("local_sgd", {{"period", "5"}}), 130285 + 247725 / 5);
}

TEST(DelayedAveraging, NothingToHideBehindIsSaid) {
  Workload workload = small_workload();
  for (Layer& layer : workload.layers) layer.forward_ns = layer.backward_ns = 0;
  const Cluster cluster = cluster_of({link("net", 1000, {1, 3})});
  const PlanResult result = make_plan("delayed_averaging", workload, cluster);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(result));
  EXPECT_NE(std::get<Infeasible>(result).reason.find("set period"), std::string::npos);
  EXPECT_EQ(plan_for(workload, cluster, {{"period", "3"}}).period.size(), 3u);
}

TEST(DelayedAveraging, NoTensorsNoOps) {
  Workload workload = small_workload();
  for (Layer& layer : workload.layers) layer.tensors.clear();
  const Plan plan = plan_for(workload, cluster_of({link("net", 1000, {1, 3})}));
  EXPECT_EQ(plan.period.size(), 1u);
  EXPECT_TRUE(plan.period[0].ops.empty());
  EXPECT_TRUE(plan.period[0].applies.empty());
}

}  // namespace
}  // namespace gradweave
