// Which op may be launched next: by data, points and the order of the plan's list, without threads.
#include "run/launch_order.h"

#include <gtest/gtest.h>

#include "run/tables.h"
#include "testing/plans.h"

namespace gradweave::run {
namespace {

// Iterations 0 and 1 of a plan, pushed, without data.
struct Pushed {
  Tables tables;
  LaunchOrder order;

  explicit Pushed(const Plan& plan) : tables(run_plan_of(plan, testing::three_layers())) {
    order.reset(tables.plan, tables.ring.capacity());
    order.points().restart(tables.plan.layers);
    for (std::int64_t n : {0, 1}) {
      tables.ring.open(tables.plan, n, n);
      order.open(tables.ring.row(n));
    }
    for (std::int64_t n : {0, 1}) order.push(tables.ring.row(n), n);
  }
  const Execution& op(std::int64_t iteration, std::int32_t place) { return tables.ring.at(iteration, place); }
  void fill(const Execution& op) { EXPECT_TRUE(order.arrive(op, order.missing(op))); }
  void run(const Execution& op) {
    order.launched(static_cast<std::size_t>(op.op->link));
    order.ended(op);
  }
};

TEST(LaunchOrder, AnOpIsDueOnceItHasItsDataAndItsReleaseAndThoseBeforeItAreLaunched) {
  Pushed of(testing::synchronous());
  const Execution &first = of.op(0, 0), &second = of.op(0, 1);
  of.fill(second);
  of.order.points().pass(PointKind::kBackwardEnd, 2, 0, Clock::now());
  of.order.points().pass(PointKind::kBackwardEnd, 1, 0, Clock::now());
  EXPECT_EQ(of.order.next(0), nullptr);  // the first one's data are missing
  of.fill(first);
  EXPECT_EQ(of.order.due(0), &first);
  EXPECT_TRUE(of.order.busy());
  of.run(first);
  EXPECT_EQ(of.order.due(0), &second);
  of.run(second);
  of.fill(of.op(0, 2));
  EXPECT_EQ(of.order.next(0), &of.op(0, 2));
  EXPECT_EQ(of.order.due(0), nullptr);  // backward_end(0) has not passed
  EXPECT_FALSE(of.order.busy());
  EXPECT_EQ(of.order.issued(0), 2U);
}

TEST(LaunchOrder, WhatIsAwaitedGoesBeforeItsPointAndSoDoThoseBeforeIt) {
  Pushed of(testing::synchronous());
  for (std::int32_t place : {0, 1, 2}) of.fill(of.op(0, place));
  EXPECT_EQ(of.order.due(0), nullptr);
  of.order.await(of.op(0, 1));
  of.run(of.op(0, 0));
  EXPECT_EQ(of.order.due(0), &of.op(0, 1));
  of.run(of.op(0, 1));
  EXPECT_EQ(of.order.due(0), nullptr);
}

// The simulator counts it too, whoever waits.
TEST(LaunchOrder, ADelayHoldsWhatIsAwaitedOnceItsPointHasPassed) {
  Plan plan = testing::synchronous();
  plan.period[0].ops[0].release.delay_ns = 3'000;
  Pushed of(plan);
  const Execution& op = of.op(0, 0);
  of.fill(op);
  of.order.await(op);
  EXPECT_EQ(of.order.free_at(op), Clock::time_point{});  // compute may wait for it before that point
  const auto now = Clock::now();
  of.order.points().pass(PointKind::kBackwardEnd, 2, 0, now);
  EXPECT_EQ(of.order.free_at(op), now + std::chrono::nanoseconds(3'000));
  EXPECT_EQ(of.order.due(0), &op);
}

TEST(LaunchOrder, NoReleaseHoldsWhereAllAreVoid) {
  Plan plan = testing::synchronous();
  for (Op& op : plan.period[0].ops) op.release.delay_ns = 3'000;
  Pushed of(plan);
  of.order.points().pass(PointKind::kBackwardEnd, 2, 0, Clock::now());
  of.order.void_releases(true);
  for (const std::int32_t place : {0, 1}) {
    of.fill(of.op(0, place));
    EXPECT_EQ(of.order.due(0), &of.op(0, place));
    EXPECT_EQ(of.order.free_at(of.op(0, place)), Clock::time_point{});
    of.run(of.op(0, place));
  }
  of.order.void_releases(false);
  of.fill(of.op(0, 2));
  EXPECT_EQ(of.order.due(0), nullptr);
}

// Two links: all_gathers on the other, listed before the reduce_scatters. Iteration 0 has nothing to gather: its first op is
// a reduce_scatter.
TEST(LaunchOrder, OpsOfAllLinksAreLaunchedInTheListsOrderWhereTheyAreOrdered) {
  for (const bool ordered : {false, true}) {
    Pushed of(testing::decoupled());
    of.order.set_ordered(ordered);
    for (std::int32_t place : {0, 1, 2}) of.run(of.op(0, place));
    const Execution& scatter = of.op(1, 3);
    const auto on = static_cast<std::size_t>(scatter.op->link);
    of.fill(scatter);
    of.order.points().pass(PointKind::kBackwardEnd, 2, 1, Clock::now());
    EXPECT_EQ(of.order.due(on), ordered ? nullptr : &scatter);
    for (std::int32_t place : {0, 1, 2}) of.run(of.op(1, place));
    EXPECT_EQ(of.order.due(on), &scatter);
  }
}

TEST(LaunchOrder, AnAllGatherHasItsDataOnceItsReduceScatterHasEnded) {
  Pushed of(testing::decoupled());
  const Execution& gather = of.op(1, 0);
  const auto on = static_cast<std::size_t>(gather.op->link);
  of.order.await(gather);
  for (std::int32_t place : {0, 1, 2}) {
    EXPECT_EQ(of.order.due(on), nullptr);
    of.run(of.op(0, place));
  }
  EXPECT_EQ(of.order.due(on), &gather);
}

TEST(LaunchOrder, WhatIsDrainedAwayIsAbsentWithItsOtherHalf) {
  Pushed of(testing::decoupled());
  const Execution &scatter = of.op(0, 0), &gather = of.op(1, 2);
  ASSERT_EQ(gather.before, &scatter);
  of.order.cut(scatter, of.order.missing(scatter), true);
  EXPECT_TRUE(of.order.absent(gather));
  EXPECT_EQ(of.order.due(static_cast<std::size_t>(scatter.op->link)), &scatter);  // to be left out
  EXPECT_FALSE(of.order.absent(of.op(0, 1)));
}

// Of two levels: each op of testing::synchronous() in steps, all scatters and gathers on one link; the first message has a link
// between nodes to itself.
Plan in_steps() {
  Plan plan = testing::synchronous();
  plan.workers = 4;
  plan.workers_per_node = 2;
  plan.links[0].level = Level::kBetween;
  plan.links.push_back({"other", 1, Level::kBetween});
  plan.links.push_back({"inside", 1, Level::kInside});
  plan.period[0].ops[0].link = "other";
  std::vector<Op> ops;
  for (const Op& op : plan.period[0].ops) {
    Op half = op;
    half.link = "inside";
    half.collective = Collective::kReduceScatter;
    ops.push_back(half);
    ops.push_back(op);
    half.collective = Collective::kAllGather;
    ops.push_back(half);
  }
  plan.period[0].ops = ops;
  return plan;
}

TEST(LaunchOrder, AStepHasItsDataOnceTheStepBeforeItHasEnded) {
  Pushed of(in_steps());
  of.order.void_releases(true);
  const Execution &scatter = of.op(0, 0), &between = of.op(0, 1), &gather = of.op(0, 2);
  EXPECT_EQ(of.order.due(1), nullptr);
  of.fill(scatter);
  EXPECT_EQ(of.order.due(2), &scatter);
  of.run(scatter);
  EXPECT_EQ(of.order.due(2), nullptr);
  EXPECT_EQ(of.order.due(1), &between);
  of.run(between);
  EXPECT_EQ(of.order.due(2), &gather);
}

// The second message's scatter is behind the first one's gather, whose step between nodes is on a link of its own.
TEST(LaunchOrder, WhatIsAwaitedFreesItsStepsAndTheStepsOfAllThatIsBeforeThem) {
  Pushed of(in_steps());
  for (const std::int32_t scatter : {0, 3, 6}) of.fill(of.op(0, scatter));
  of.order.await(of.op(0, 5));
  for (const std::int32_t place : {0, 1, 2, 3, 4, 5}) {
    const Execution& step = of.op(0, place);
    EXPECT_EQ(of.order.due(static_cast<std::size_t>(step.op->link)), &step);
    of.run(step);
  }
  EXPECT_EQ(of.order.due(2), nullptr);
}

TEST(LaunchOrder, WhatIsDrainedAwayIsAbsentInAllItsSteps) {
  Pushed of(in_steps());
  of.order.cut(of.op(0, 0), of.order.missing(of.op(0, 0)), true);
  for (const std::int32_t place : {0, 1, 2}) EXPECT_TRUE(of.order.absent(of.op(0, place)));
  EXPECT_FALSE(of.order.absent(of.op(0, 3)));
}

}  // namespace
}  // namespace gradweave::run
