// The validator's rules on plans of two levels of links, by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradweave/json.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"

namespace gradweave {
namespace {

using ::testing::HasSubstr;

// Two layers, 1000 floats each: forward 10 us and backward 20 us.
Workload two_layers() {
  Workload workload{.name = "two"};
  for (const char* name : {"a", "b"}) {
    workload.layers.push_back({.name = name,
                               .forward_ns = 10'000,
                               .backward_ns = 20'000,
                               .tensors = {{.name = std::string(name) + ".w", .numel = 1000}}});
  }
  return workload;
}

// Four nodes of two workers: 2 us and 1 ns a byte for an all-reduce inside, 10 us and 5 ns a byte between.
Cluster four_nodes() {
  Cluster cluster{.workers = 8, .workers_per_node = 2};
  cluster.links = {{.name = "net", .startup_ns = 10'000, .us_per_byte = {5, 3}}};
  cluster.inside = Inside{.links = {{.name = "bus", .startup_ns = 2'000, .us_per_byte = {1, 3}}}};
  return cluster;
}

Op step(const char* link, Collective collective, std::int32_t block) {
  return {.link = link,
          .collective = collective,
          .blocks = {block},
          .merges = {0},
          .release = {.point = {PointKind::kBackwardEnd, block}}};
}

// Both layers all-reduced in steps, layer b's first, and applied at iteration_end.
Plan stepped_plan() {
  Plan plan{.workers = 8, .workers_per_node = 2};
  plan.blocks = {{"a.w", 0, 1000}, {"b.w", 0, 1000}};
  plan.links = {{"bus", 1, Level::kInside}, {"net", 1, Level::kBetween}};
  Iteration iteration;
  for (const std::int32_t block : {1, 0}) {
    iteration.ops.push_back(step("bus", Collective::kReduceScatter, block));
    iteration.ops.push_back(step("net", Collective::kAllReduce, block));
  }
  for (const std::int32_t block : {1, 0}) iteration.ops.push_back(step("bus", Collective::kAllGather, block));
  iteration.applies = {{.at = {PointKind::kIterationEnd}, .blocks = {0, 1}, .merges = {0}}};
  plan.period = {iteration};
  return plan;
}

std::string faults_of(const Plan& plan) {
  std::string text;
  const Cluster cluster = four_nodes();
  for (const Violation& v : validate(plan, two_layers(), &cluster).violations)
    text += std::to_string(v.rule) + " " + v.where + ": " + v.what + "\n";
  return text;
}

TEST(Levels, StepsOfSeveralMessagesOverlap) {
  const Plan plan = stepped_plan();
  EXPECT_EQ(faults_of(plan), "");
  // Layer b's gradients are there at 40 us: scattered until 43 (1 + 2), between nodes until 73 (10 + 20), gathered until
  // 76. Layer a's at 60: scattered until 63, between nodes from 73 to 103, gathered until 106.
  const SimulationResult result = simulate(plan, two_layers(), four_nodes(), {.timeline_iterations = 1});
  EXPECT_EQ(result.cycle_ns, 106'000 * result.cycle_iterations);
  std::vector<std::pair<Nanoseconds, Nanoseconds>> ops;
  for (const Span& span : result.timeline.spans) {
    if (span.kind == SpanKind::kOp) ops.emplace_back(span.begin_ns / 1000, span.end_ns / 1000);
  }
  EXPECT_THAT(ops,
              ::testing::UnorderedElementsAre(std::pair(40, 43), std::pair(43, 73), std::pair(73, 76),
                                              std::pair(60, 63), std::pair(73, 103), std::pair(103, 106)));
  EXPECT_EQ(result.bytes_per_iteration, 8000);
  EXPECT_EQ(result.ops_per_iteration, 6);
}

TEST(Levels, AFlatPlanTakesItsStepsOneAfterAnother) {
  Plan flat = stepped_plan();
  flat.workers_per_node = 1;
  flat.links = {{"net", 1, Level::kAll}};
  std::erase_if(flat.period[0].ops, [](const Op& op) { return op.link == "bus"; });
  EXPECT_EQ(faults_of(flat), "");
  // 36 us each on one link: from 40 to 76, to 112.
  const SimulationResult result = simulate(flat, two_layers(), four_nodes());
  EXPECT_EQ(result.cycle_ns, 112'000 * result.cycle_iterations);
}

TEST(Levels, EachStepHasToBeThereOnceAndInOrder) {
  const auto faults_without = [](std::size_t op) {
    Plan plan = stepped_plan();
    plan.period[0].ops.erase(plan.period[0].ops.begin() + static_cast<std::ptrdiff_t>(op));
    return faults_of(plan);
  };
  EXPECT_THAT(faults_without(0),
              HasSubstr("3 period[0].ops[0]: no reduce_scatter inside nodes has its blocks and merges"));
  EXPECT_THAT(faults_without(1),
              HasSubstr("3 period[0].ops[0]: no op between nodes has its blocks and merges"));
  EXPECT_THAT(faults_without(5), HasSubstr("3 period[0].ops[2]: no all_gather has its blocks and merges"));
  Plan twice = stepped_plan();
  twice.period[0].ops.push_back(twice.period[0].ops[1]);
  EXPECT_THAT(faults_of(twice), HasSubstr("3 period[0].ops[6]: reduces again between nodes what is reduced"));
  Plan early = stepped_plan();
  std::swap(early.period[0].ops[0], early.period[0].ops[1]);
  EXPECT_THAT(faults_of(early),
              HasSubstr("3 period[0].ops[0]: comes before its reduce_scatter inside nodes"));
  Plan gathered = stepped_plan();
  std::swap(gathered.period[0].ops[3], gathered.period[0].ops[5]);
  EXPECT_THAT(faults_of(gathered), HasSubstr("3 period[0].ops[3]: comes before its op between nodes"));
}

TEST(Levels, HalvesMayBeApartBetweenNodesToo) {
  Plan plan = stepped_plan();
  Op& scatter = plan.period[0].ops[1];
  scatter.collective = Collective::kReduceScatter;
  Op gather = scatter;
  gather.collective = Collective::kAllGather;
  plan.period[0].ops.insert(plan.period[0].ops.begin() + 4, gather);
  EXPECT_EQ(faults_of(plan), "");
  std::swap(plan.period[0].ops[4], plan.period[0].ops[5]);
  EXPECT_THAT(faults_of(plan), HasSubstr("3 period[0].ops[4]: comes before its op between nodes"));
}

TEST(Levels, FormIsChecked) {
  Plan mixed = stepped_plan();
  mixed.links[1].level = Level::kAll;
  EXPECT_THAT(faults_of(mixed), HasSubstr("has a level where another link has none"));
  Plan whole = stepped_plan();
  whole.period[0].ops[0].collective = Collective::kAllReduce;
  EXPECT_THAT(faults_of(whole), HasSubstr("reduces within a node what other nodes hold too"));
  Plan small = stepped_plan();
  small.workers_per_node = 1;
  EXPECT_THAT(faults_of(small), HasSubstr("workers_per_node: must be at least 2"));
  Plan uneven = stepped_plan();
  uneven.workers_per_node = 3;
  EXPECT_THAT(faults_of(uneven), HasSubstr("does not divide workers"));
  Plan renamed = stepped_plan();
  renamed.links[0].level = Level::kBetween;
  EXPECT_THAT(faults_of(renamed), HasSubstr("is not a link between the cluster's nodes"));
}

}  // namespace
}  // namespace gradweave
