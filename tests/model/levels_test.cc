// Clusters of two levels: their costs, by hand, what they scale to, and their file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradweave/compression.h"
#include "gradweave/cost.h"
#include "gradweave/error.h"
#include "gradweave/json.h"

namespace gradweave {
namespace {

using ::testing::HasSubstr;

// Three nodes of four workers. A message of 1001 bytes takes 100 + 1001 ns inside and, between nodes, 1000 + 10010 ns on
// a shared link, 1000 + 2510 ns on one of each worker.
Cluster three_nodes(bool each_worker) {
  Cluster cluster{.workers = 12, .workers_per_node = 4};
  cluster.links = {{.name = "net", .startup_ns = 1'000, .us_per_byte = {1, 2}, .each_worker = each_worker}};
  cluster.inside =
      Inside{StartupGrowth::kConstant, {{.name = "bus", .startup_ns = 100, .us_per_byte = {1, 3}}}};
  return cluster;
}

Workload bytes(std::int64_t count) {
  return {.name = "bytes",
          .layers = {{.name = "l", .tensors = {{.name = "t", .numel = count, .dtype = DType::kInt8}}}}};
}

TEST(TwoLevels, CostsAreThoseOfEachStep) {
  const Slice all[] = {{0, 0, 1001}};
  for (const bool each : {false, true}) {
    const CostModel model(bytes(1001), three_nodes(each));
    EXPECT_EQ(model.link_count(), 1U);
    EXPECT_EQ(model.cost(1, Collective::kReduceScatter, all).total(), 550);
    EXPECT_EQ(model.cost(1, Collective::kAllGather, all).total(), 551);
    EXPECT_EQ(model.cost(0, Collective::kAllReduce, all).total(), each ? 3'510 : 11'010);
    // Planners see the sum, the rate of the shard being a quarter.
    const CostModel flat(bytes(1001), flattened(three_nodes(each)));
    EXPECT_EQ(flat.cost(0, Collective::kAllReduce, all).total(), each ? 1'100 + 3'504 : 1'100 + 11'011);
  }
}

TEST(TwoLevels, ShardsAreEncodedApartAndMessagesInsideAreNot) {
  Workload workload = bytes(1024);
  workload.layers[0].tensors[0].dtype = DType::kFloat32;
  const Slice all[] = {{0, 0, 1024}};
  const Compression fp16{.name = "fp16"};
  for (const bool each : {false, true}) {
    const Cluster cluster = three_nodes(each);
    // 4096 bytes, halved: 2048 of all workers of a node, 512 of one.
    const Nanoseconds between = 1'000 + (each ? 5'120 : 20'480);
    EXPECT_EQ(CostModel(workload, cluster).cost(0, Collective::kCompressed, all, fp16).total(), between);
    EXPECT_EQ(CostModel(workload, flattened(cluster)).cost(0, Collective::kCompressed, all, fp16).total(),
              between + 100 + 4'096);
  }
}

TEST(TwoLevels, NodesAndTheirWorkersScaleApart) {
  Cluster cluster = three_nodes(false);
  cluster.inside->startup_growth = StartupGrowth::kLinear;
  const Cluster more = scaled_to(cluster, 20);  // 5 nodes: 4/2 of the start-up, 8/5 over 4/3 of the rate
  EXPECT_EQ(more.workers, 20);
  EXPECT_EQ(more.links[0].startup_ns, 2'000);
  EXPECT_EQ(more.links[0].us_per_byte, (Decimal{12, 3}));
  EXPECT_EQ(more.inside, cluster.inside);
  const Cluster larger = with_workers_per_node(cluster, 7);  // 6/3, and 12/7 over 6/4
  EXPECT_EQ(larger.workers, 21);
  EXPECT_EQ(larger.links, cluster.links);
  EXPECT_EQ(larger.inside->links[0].startup_ns, 200);
  EXPECT_EQ(larger.inside->links[0].us_per_byte, multiply_ratio({1, 3}, 8, 7));
  EXPECT_EQ(participants(larger), 3);
  EXPECT_FALSE(has_levels(with_workers_per_node(cluster, 1)));
  EXPECT_THROW(scaled_to(cluster, 13), InvalidInput);
  EXPECT_THROW(scaled_to(with_workers_per_node(scaled_to(cluster, 4), 4), 8), InvalidInput);  // from one node
  cluster.inside.reset();
  EXPECT_THROW(with_workers_per_node(cluster, 2), InvalidInput);
}

TEST(TwoLevels, FileAndHash) {
  for (const bool each : {false, true}) {
    const Cluster cluster = three_nodes(each);
    EXPECT_EQ(parse_cluster(to_json(cluster)), cluster);
    EXPECT_NE(hash_of(cluster), hash_of(three_nodes(!each)));
    Cluster faster = cluster;
    faster.inside->links[0].us_per_byte = {1, 4};
    EXPECT_NE(hash_of(cluster), hash_of(faster));
    EXPECT_EQ(not_modelled(cluster), "");
  }
}

TEST(TwoLevels, FaultsAreNamed) {
  const auto fault_of = [](const auto& change) -> std::string {
    Cluster cluster = three_nodes(true);
    change(cluster);
    try {
      check(cluster);
      return "";
    } catch (const InvalidInput& error) {
      return error.what();
    }
  };
  EXPECT_EQ(fault_of([](Cluster&) {}), "");
  EXPECT_THAT(fault_of([](Cluster& c) { c.workers = 13; }), HasSubstr("workers"));
  EXPECT_THAT(fault_of([](Cluster& c) { c.inside->links.clear(); }), HasSubstr("inside.links"));
  EXPECT_THAT(fault_of([](Cluster& c) { c.inside->links[0].name = "net"; }),
              HasSubstr("inside.links[0].name"));
  EXPECT_THAT(fault_of([](Cluster& c) { c.inside.reset(); }), HasSubstr("links[0].each_worker"));
}

TEST(TwoLevels, SumsOfRatesAreExactWhereTheyFit) {
  EXPECT_EQ(sum_of({1, 3}, {25, 1}), (Decimal{2501, 3}));
  EXPECT_EQ(sum_of({}, {7, 5}), (Decimal{7, 5}));
  EXPECT_EQ(sum_of({5, 1}, {5, 1}), (Decimal{1, 0}));
  EXPECT_EQ(sum_of({1, 0}, {6, 40}), (Decimal{1, 0}));
}

}  // namespace
}  // namespace gradweave
