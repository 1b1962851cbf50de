// What a rank did last: kept in a ring, and named.
#include "run/flight_recorder.h"

#include <gtest/gtest.h>

#include "testing/plans.h"

namespace gradweave {
namespace {

using run::FlightRecorder;

class Recorded : public ::testing::Test {
 protected:
  explicit Recorded(std::size_t capacity = 64)
      : plan(run_plan_of(testing::synchronous(), testing::three_layers())), ring(plan), recorder(capacity) {
    recorder.install(plan);
    recorder.name_layers({"a", "b", "c"});
    recorder.restart(100);  // iterations of other plans
  }

  const run::Execution& op(std::int64_t iteration, std::int32_t place) {
    ring.open(plan, iteration, 100 + iteration);
    return ring.at(iteration, place);
  }

  RunPlan plan;
  run::Ring ring;
  FlightRecorder recorder;
};

TEST_F(Recorded, PointsAreComputeAndOpsHaveTheirNames) {
  recorder.pass(PointKind::kIterationStart, 0, 3, 10);
  recorder.pass(PointKind::kBackwardStart, 0, 3, 20);
  recorder.pass(PointKind::kBackwardEnd, 2, 3, 30);
  const run::Execution& first = op(3, 0);
  const std::int64_t event = recorder.op_begins(first, 31);
  recorder.ended(event, 39);
  recorder.pass(PointKind::kIterationEnd, 0, 3, 45);
  const Timeline timeline = recorder.timeline(50);
  ASSERT_EQ(timeline.spans.size(), 3U);
  EXPECT_EQ(timeline.spans[0], (Span{.kind = SpanKind::kBackward,
                                     .iteration = 103,
                                     .layer = 2,
                                     .begin_ns = 20,
                                     .end_ns = 30,
                                     .label = "c"}));
  EXPECT_EQ(timeline.spans[1].kind, SpanKind::kOptimizer);
  EXPECT_EQ(timeline.spans[2], (Span{.kind = SpanKind::kOp,
                                     .track = 1,
                                     .iteration = 103,
                                     .op = 0,
                                     .begin_ns = 31,
                                     .end_ns = 39,
                                     .bytes = first.op->bytes,
                                     .label = first.op->label}));
  EXPECT_EQ(timeline.links, plan.links);
}

TEST_F(Recorded, WhatIsUnderWayHasNotEnded) {
  const run::Execution& first = op(0, 0);
  recorder.op_begins(first, 5);
  recorder.wait_begins(first, 1, 7);
  const Timeline timeline = recorder.timeline(50);
  ASSERT_EQ(timeline.spans.size(), 2U);
  for (const Span& span : timeline.spans) {
    EXPECT_FALSE(span.ended);
    EXPECT_EQ(span.end_ns, 50);
  }
  EXPECT_EQ(timeline.spans[1].layer, 1);
  EXPECT_NE(timeline.spans[1].reason.find(first.op->label), std::string::npos);
}

TEST_F(Recorded, AnotherPlanKeepsTheNamesOfTheOneBefore) {
  const std::string label = op(0, 0).op->label;
  recorder.op_begins(op(0, 0), 5);
  RunPlan other = run_plan_of(testing::partial(), testing::three_layers());
  recorder.install(other);
  EXPECT_EQ(recorder.timeline(50).spans.at(0).label, label);
  recorder.install(plan);
  EXPECT_TRUE(recorder.timeline(50).spans.empty());  // two plans ago
}

class Overwritten : public Recorded {
 protected:
  Overwritten() : Recorded(8) {}
};

TEST_F(Overwritten, IterationsThatAreNotWholeAreLeftOut) {
  for (std::int64_t iteration = 0; iteration < 5; ++iteration) {
    recorder.pass(PointKind::kBackwardStart, 0, iteration, 100 * iteration + 1);
    for (std::int32_t layer = 3; layer-- > 0;)
      recorder.pass(PointKind::kBackwardEnd, layer, iteration, 100 * iteration + 5 - layer);
  }
  const Timeline timeline = recorder.timeline(1000);
  ASSERT_EQ(timeline.spans.size(), 6U);  // of two iterations
  EXPECT_EQ(timeline.spans.front().iteration, 103);
  EXPECT_EQ(timeline.spans.front().label, "c");
  const std::int64_t old = recorder.op_begins(op(5, 0), 2000);
  for (int i = 0; i < 20; ++i) recorder.pass(PointKind::kBackwardEnd, 0, 5, 2001 + i);
  recorder.ended(old, 2100);  // its place holds something else
  for (const Span& span : recorder.timeline(3000).spans) EXPECT_NE(span.end_ns, 2100);
}

TEST(FlightRecorder, WithoutRoomRecordsNothing) {
  FlightRecorder recorder(0);
  recorder.pass(PointKind::kIterationEnd, 0, 1, 1);
  EXPECT_EQ(recorder.timeline(5), (Timeline{.name = "run", .origin = "measured"}));
}

}  // namespace
}  // namespace gradweave
