// Figures of timelines and where two part, by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "gradweave/timeline.h"

namespace gradweave {
namespace {

Span compute(SpanKind kind, std::int64_t iteration, std::int32_t layer, Nanoseconds begin, Nanoseconds end,
             std::string label = "") {
  return {.kind = kind,
          .track = 0,
          .iteration = iteration,
          .layer = layer,
          .begin_ns = begin,
          .end_ns = end,
          .label = std::move(label)};
}

Span op(std::int64_t iteration, Nanoseconds begin, Nanoseconds end) {
  return {.kind = SpanKind::kOp,
          .track = 1,
          .iteration = iteration,
          .op = 0,
          .begin_ns = begin,
          .end_ns = end,
          .label = "all_reduce w"};
}

// Iterations of 100 from `origin` on, numbered from 7: forward 0-20, backward 20-60, all_reduce 60-95, a wait for it
// 60-95 and 5 that nothing is known of.
Timeline regular(int iterations, Nanoseconds origin = 0) {
  Timeline timeline{.name = "regular", .origin = "measured", .links = {"net"}};
  for (int i = 0; i < iterations; ++i) {
    const Nanoseconds at = origin + 100 * i;
    timeline.spans.push_back(compute(SpanKind::kForward, 7 + i, 0, at, at + 20, "conv"));
    timeline.spans.push_back(compute(SpanKind::kBackward, 7 + i, 0, at + 20, at + 60, "conv"));
    timeline.spans.push_back(compute(SpanKind::kWait, 7 + i, -1, at + 60, at + 95, "wait for all_reduce w"));
    timeline.spans.back().reason = "link net busy";
    timeline.spans.push_back(op(7 + i, at + 60, at + 95));
  }
  return timeline;
}

TEST(Figures, AreMeansOverWholeIterations) {
  const TimelineFigures figures = figures_of(regular(4, 1000));
  EXPECT_EQ(figures.iterations, 4);
  EXPECT_EQ(figures.iteration_ns, 100);
  EXPECT_EQ(figures.exposed_ns, 35);
  ASSERT_EQ(figures.exposed_layers.size(), 1U);
  EXPECT_EQ(figures.exposed_layers[0].layer, -1);
  EXPECT_EQ(figures.exposed_layers[0].reason, "link net busy");
  EXPECT_EQ(figures.begins.at(9), 1200);
}

TEST(Figures, OfOneIterationEndWithItsCompute) {
  const TimelineFigures figures = figures_of(regular(1, 1000));
  EXPECT_EQ(figures.iterations, 1);
  EXPECT_EQ(figures.iteration_ns, 95);
  EXPECT_EQ(figures.exposed_ns, 35);
}

TEST(Figures, OfNoComputeAreZero) {
  const TimelineFigures figures = figures_of({.name = "ops", .links = {"net"}, .spans = {op(0, 0, 5)}});
  EXPECT_EQ(figures.iterations, 0);
  EXPECT_EQ(figures.iteration_ns, 0);
}

TEST(Diff, OriginAndNumbersOfIterationsDoNotMatter) {
  Timeline other = regular(5, 5000);
  for (Span& span : other.spans) span.iteration += 30;
  const TimelineDiff diff = diff_of(regular(4), other, 0);
  EXPECT_FALSE(diff.parting);
  EXPECT_TRUE(diff.largest.empty());
}

TEST(Diff, NamesTheFirstSpanThatTakesLonger) {
  Timeline slow = regular(4);
  // From the backward of the second iteration on all is 10 later.
  for (Span& span : slow.spans) {
    if (span.begin_ns > 120) span.begin_ns += 10;
    if (span.end_ns > 120) span.end_ns += 10;
  }
  const TimelineDiff diff = diff_of(regular(4), slow, 0.05);
  ASSERT_TRUE(diff.parting);
  EXPECT_EQ(diff.parting->iteration, 1);
  EXPECT_EQ(diff.parting->what, "backward conv");
  EXPECT_EQ(diff.parting->a, std::pair(Nanoseconds{120}, Nanoseconds{160}));
  EXPECT_EQ(diff.parting->b, std::pair(Nanoseconds{120}, Nanoseconds{170}));
  EXPECT_FALSE(diff_of(regular(4), slow, 0.1).parting);
}

TEST(Diff, ASpanThatIsInOneOnlyPartsThem) {
  Timeline without = regular(3);
  std::erase_if(without.spans,
                [](const Span& span) { return span.kind == SpanKind::kOp && span.iteration == 8; });
  const TimelineDiff diff = diff_of(regular(3), without, 0.01);
  ASSERT_TRUE(diff.parting);
  EXPECT_EQ(diff.parting->iteration, 1);
  EXPECT_EQ(diff.parting->what, "all_reduce w on net");
  EXPECT_FALSE(diff.parting->b);
  ASSERT_EQ(diff.largest.size(), 1U);
  EXPECT_NEAR(*diff.largest[0].a_ns - *diff.largest[0].b_ns, 35.0 / 3, 1e-9);
  const TimelineDiff mirrored = diff_of(without, regular(3), 0.01);
  ASSERT_TRUE(mirrored.parting);
  EXPECT_FALSE(mirrored.parting->a);
}

TEST(Diff, AnOpBeyondTheEndOfOneIsNoDifference) {
  Timeline cut = regular(3);
  std::erase_if(cut.spans,
                [](const Span& span) { return span.kind == SpanKind::kOp && span.iteration == 9; });
  EXPECT_FALSE(diff_of(regular(3), cut, 0.01).parting);
}

TEST(Diff, KindsOfWorkAreComparedPerIteration) {
  Timeline other = regular(2);
  for (Span& span : other.spans) {
    if (span.kind == SpanKind::kForward) span.end_ns -= 8;
  }
  other.links = {"other"};
  const TimelineDiff diff = diff_of(regular(2), other, 0.01);
  const auto kind = [&](std::string_view what) {
    return *std::ranges::find(diff.kinds, what, &TimelineDifference::what);
  };
  EXPECT_EQ(kind("forward").a_ns, 20);
  EXPECT_EQ(kind("forward").b_ns, 12);
  EXPECT_EQ(kind("backward").a_ns, kind("backward").b_ns);
  EXPECT_EQ(kind("ops on net").a_ns, 35);
  EXPECT_FALSE(kind("ops on net").b_ns);
  EXPECT_FALSE(kind("ops on other").a_ns);
}

// ---- ranks that have stopped

struct Done {
  std::int64_t iteration;
  std::int32_t op;
  bool ended = true;
};

// Ops of the ranks' common list, one after another; after each iteration's ops the optimizer.
Timeline stopped(std::int64_t rank, const std::vector<Done>& ops) {
  Timeline timeline{.name = "rank " + std::to_string(rank), .origin = "measured", .links = {"net"}};
  Nanoseconds now = 1000 * rank;  // clocks differ
  for (const Done& done : ops) {
    Span span = op(done.iteration, now, now + 10);
    span.op = done.op;
    span.ended = done.ended;
    span.label = "op " + std::to_string(done.op);
    timeline.spans.push_back(span);
    now += 10;
    if (done.op == 1 && done.ended)
      timeline.spans.push_back(compute(SpanKind::kOptimizer, done.iteration, -1, now, now + 5, "optimizer"));
  }
  timeline.stop = Stop{.rank = rank, .ranks = 2};
  return timeline;
}

TEST(Paths, PartAtTheFirstOpThatNotBothBegan) {
  const Timeline ahead = stopped(0, {{7, 0}, {7, 1}, {8, 0}, {8, 1, false}}),
                 behind = stopped(1, {{7, 0}, {7, 1}, {8, 0}});
  const PathDiff diff = path_diff_of(ahead, behind);
  ASSERT_TRUE(diff.parting);
  EXPECT_EQ(diff.parting->iteration, 8);
  EXPECT_EQ(diff.parting->what, "op 1 on net");
  EXPECT_EQ(diff.parting->a, "began and did not end");
  EXPECT_EQ(diff.parting->b, "did not begin");
  EXPECT_EQ(diff.last_b, "the optimizer of iteration 7");
  const PathDiff mirrored = path_diff_of(behind, ahead);
  ASSERT_TRUE(mirrored.parting);
  EXPECT_EQ(mirrored.parting->b, "began and did not end");
}

TEST(Paths, DontPartBehindAnOpThatHoldsBothUp) {
  const PathDiff diff = path_diff_of(stopped(0, {{7, 0, false}}), stopped(1, {{7, 0, false}, {7, 1, false}}));
  EXPECT_FALSE(diff.parting);
  ASSERT_TRUE(diff.both_in);
  EXPECT_EQ(diff.both_in->what, "op 0 on net");
  EXPECT_EQ(diff.both_in->iteration, 7);
}

TEST(Paths, BeginWhereBothAreRecorded) {
  EXPECT_FALSE(path_diff_of(stopped(0, {{5, 0}, {5, 1}, {6, 0}}), stopped(1, {{6, 0}})).parting);
}

TEST(Paths, OfEqualOpsPartInCompute) {
  Timeline ahead = stopped(0, {{7, 0}});
  ahead.spans.push_back(compute(SpanKind::kBackward, 7, 1, 50, 60, "out"));
  ahead.spans.push_back(compute(SpanKind::kBackward, 7, 0, 60, 70, "conv"));
  const PathDiff diff = path_diff_of(stopped(1, {{7, 0}}), ahead);
  ASSERT_TRUE(diff.parting);
  EXPECT_EQ(diff.parting->what, "backward out");  // the first of a backward
  EXPECT_EQ(diff.parting->a, "did not begin");
}

}  // namespace
}  // namespace gradweave
