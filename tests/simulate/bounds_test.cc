// Lower bounds by hand. Two layers, forward 10 and 20, backward 40 and 30: compute 100; from backward_start
// layer 1's gradient takes 30, layer 0's 70. 100 elements a layer, 4 ns for each byte of one layer unless
// said.
#include <gtest/gtest.h>

#include <string>

#include "gradweave/simulate.h"

namespace gradweave {
namespace {

Workload two_layers() {
  return {.name = "two",
          .layers = {{.name = "a", .forward_ns = 10, .backward_ns = 40, .tensors = {{"a.w", 100}}},
                     {.name = "b", .forward_ns = 20, .backward_ns = 30, .tensors = {{"b.w", 100}}}}};
}

// 400 bytes take 40 ns and the start-up.
Cluster one_link(Nanoseconds startup, std::int32_t concurrency) {
  return {
      .workers = 2,
      .links = {{.name = "eth0", .startup_ns = startup, .us_per_byte = {1, 4}, .concurrency = concurrency}}};
}

Op op(std::vector<std::int32_t> blocks, Collective collective, std::int32_t layer) {
  return {.link = "eth0",
          .collective = collective,
          .blocks = std::move(blocks),
          .merges = {0},
          .release = {{PointKind::kBackwardEnd, layer}}};
}

// Block 0 is layer a's, 1 is layer b's; each is applied before its layer's next forward.
Plan overlapped(std::vector<Op> ops, std::int32_t concurrency) {
  return {.blocks = {{"a.w", 0, 100}, {"b.w", 0, 100}},
          .links = {{"eth0", concurrency}},
          .period = {{.ops = std::move(ops),
                      .applies = {{.at = {PointKind::kForwardStart, 0}, .blocks = {0}, .merges = {-1}},
                                  {.at = {PointKind::kForwardStart, 1}, .blocks = {1}, .merges = {-1}}}}}};
}

double bound(const SimulationResult& result, const std::string& name) {
  for (const Bound& bound : result.bounds) {
    if (bound.name == name) return bound.iteration_ns;
  }
  return -1;
}

TEST(Bounds, StartUpIsWorkOfALinkThatServesOneAtATime) {
  std::vector<Op> ops = {op({1}, Collective::kAllReduce, 1), op({0}, Collective::kAllReduce, 0)};
  EXPECT_EQ(bound(simulate(overlapped(ops, 1), two_layers(), one_link(30, 1)), "link eth0"), 140);
  EXPECT_EQ(bound(simulate(overlapped(ops, 0), two_layers(), one_link(30, 0)), "link eth0"), 80);
}

TEST(Bounds, CriticalPathOfTwoAllReduces) {
  std::vector<Op> ops = {op({1}, Collective::kAllReduce, 1), op({0}, Collective::kAllReduce, 0)};
  // b from 30 to 100, if a did not preempt it at 70; a: 70 to 140 and 30 of forward: 170. b's rest: 140 to
  // 170 and 20 of forward: 190.
  SimulationResult result = simulate(overlapped(ops, 1), two_layers(), one_link(30, 1));
  EXPECT_EQ(bound(result, "critical path"), 190);
  EXPECT_EQ(result.cycle_ns, 200);  // without preemption: a from 100 to 170
  // Off a shared link start-ups pass first: b from 60, a from 100 to 140, and 30 of forward.
  result = simulate(overlapped(ops, 0), two_layers(), one_link(30, 0));
  EXPECT_EQ(bound(result, "critical path"), 170);
}

TEST(Bounds, AReduceScatterIsFollowedByItsAllGather) {
  // One message of both layers, halves of 55 with their start-up, on a link each. Ready at 70, scattered at
  // 125, gathered in 40 or more, and 30 of forward.
  std::vector<Op> ops = {op({0, 1}, Collective::kReduceScatter, 0), op({0, 1}, Collective::kAllGather, 0)};
  ops[1].link = "eth1";
  Plan plan = overlapped(std::move(ops), 1);
  plan.links.push_back({"eth1", 1});
  Cluster cluster = one_link(30, 1);
  cluster.links.push_back(cluster.links[0]);
  cluster.links[1].name = "eth1";
  const SimulationResult result = simulate(plan, two_layers(), cluster);
  EXPECT_EQ(bound(result, "critical path"), 195);
  EXPECT_EQ(result.cycle_ns, 210);  // the gather takes 55
}

TEST(Bounds, AllLinksTogetherWhereEachSuitsAnotherOp) {
  // Layer a takes 100 on either link, layer b 40 on the first and 400 on the second. Best is b and 0.3 of a
  // on the first: 70. Weights 1/140 and 1/500 prove (100/500 + 40/140) / (1/140 + 1/500).
  Workload workload = two_layers();
  workload.layers[0].communication_ns = 100;
  Cluster cluster = one_link(0, 1);
  cluster.links.push_back({.name = "eth1", .us_per_byte = {1, 3}});
  Plan plan = overlapped({op({1}, Collective::kAllReduce, 1), op({0}, Collective::kAllReduce, 0)}, 1);
  plan.links.push_back({"eth1", 1});
  EXPECT_NEAR(bound(simulate(plan, workload, cluster), "all links"), 53.125, 1e-6);
}

}  // namespace
}  // namespace gradweave
