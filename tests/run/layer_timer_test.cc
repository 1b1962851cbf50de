#include "run/layer_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run/fake_stopwatch.h"
#include "run/iteration_timer.h"
#include "testing/plans.h"

namespace gradweave::run {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Lt;

class LayerTimerTest : public ::testing::TestWithParam<bool> {
 protected:
  LayerTimerTest() { timer_.reset(3); }

  void forward(const std::vector<std::int32_t>& layers, std::int64_t ns) {
    for (const std::int32_t layer : layers) {
      timer_.layer_started(layer);
      watch_.time += ns;
    }
  }
  void backward(const std::vector<std::int32_t>& layers, std::int64_t ns) {
    EXPECT_TRUE(timer_.backward_begins());
    EXPECT_FALSE(timer_.backward_begins());
    for (const std::int32_t layer : layers) {
      watch_.time += ns;
      timer_.gradient_came(layer);
    }
    watch_.time += 1;
    timer_.backward_ended();
  }

  std::unique_ptr<FakeStopwatch> made_ = std::make_unique<FakeStopwatch>(GetParam());
  FakeStopwatch& watch_ = *made_;
  LayerTimer timer_{std::move(made_)};
};

TEST_P(LayerTimerTest, OfSeveralPassesTheFirstForwardAndTheLastBackwardAreToldLayerByLayer) {
  timer_.begin_profile(1);
  for (int pass = 0; pass < 2; ++pass) {
    timer_.forward_begins();
    watch_.time += 5;  // before the first layer
    forward({0, 1, 2}, 10);
  }
  backward({2, 1, 0}, 20);
  watch_.time += 7;
  EXPECT_TRUE(timer_.iteration_ended());
  const LayerTimes times = timer_.end_profile();
  EXPECT_THAT(times.forward_ns, ElementsAre(15, 10, 10 + 35));
  EXPECT_THAT(times.backward_ns, ElementsAre(21, 20, 20));
  EXPECT_EQ(times.rest_ns, 7);
  EXPECT_TRUE(times.every_layer);
  EXPECT_EQ(times.iterations, 1);
}

TEST_P(LayerTimerTest, LayersThatDoNotRunTakeNothingAndTheOthersTheirOwnTime) {
  timer_.begin_profile(1);
  timer_.forward_begins();
  forward({0, 2}, 10);
  backward({0}, 20);
  EXPECT_TRUE(timer_.iteration_ended());
  const LayerTimes times = timer_.end_profile();
  EXPECT_THAT(times.forward_ns, ElementsAre(10, 0, 10));
  EXPECT_THAT(times.backward_ns, ElementsAre(21, 0, 0));
  EXPECT_FALSE(times.every_layer);
}

TEST_P(LayerTimerTest, AForwardWithoutGradientsIsNoPartOfAnIteration) {
  timer_.begin_profile(2);
  forward({0, 1, 2}, 1000);
  EXPECT_FALSE(timer_.iteration_ended());
  forward({0, 1, 2}, 1000);
  timer_.forward_begins();
  forward({0, 1, 2}, 10);
  backward({2, 1, 0}, 20);
  EXPECT_TRUE(timer_.iteration_ended());
  EXPECT_THAT(timer_.end_profile().forward_ns, ElementsAre(10, 10, 10));
}

TEST_P(LayerTimerTest, AnIterationWhoseBackwardDoesNotEndIsNotKept) {
  timer_.begin_profile(1);
  timer_.forward_begins();
  forward({0, 1, 2}, 10);
  backward({2, 1, 0}, 20);
  EXPECT_TRUE(timer_.backward_begins());
  EXPECT_FALSE(timer_.iteration_ended());
  timer_.forward_begins();
  timer_.backward_ended();  // of none
  EXPECT_FALSE(timer_.iteration_ended());
}

TEST_P(LayerTimerTest, AllIterationsOfAProfileCountHoweverMany) {
  timer_.begin_profile(3 * kMostKept);
  for (int n = 0; n < 3 * kMostKept; ++n) {
    timer_.forward_begins();
    forward({0, 1, 2}, n < 2 * kMostKept ? 10 : 50);
    backward({2, 1, 0}, 20);
    EXPECT_TRUE(timer_.iteration_ended());
  }
  EXPECT_THAT(timer_.end_profile().forward_ns, ElementsAre(10, 10, 10));
  timer_.begin_profile(1);
  EXPECT_THAT(timer_.end_profile().forward_ns, ElementsAre(0, 0, 0));
}

INSTANTIATE_TEST_SUITE_P(OfTheHostAndOfAnAccelerator, LayerTimerTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Accelerator" : "Host"; });

// An iteration of 10 in the forward and 20 in the backward.
void iterate(LayerTimer& timer, FakeStopwatch& watch) {
  timer.forward_begins();
  timer.layer_started(0);
  watch.time += 10;
  timer.backward_begins();
  watch.time += 20;
  timer.gradient_came(0);
  timer.backward_ended();
  timer.iteration_ended();
}

TEST(LayerTimer, WhatADeviceHasNotPassedIsReadLaterAndForgottenThen) {
  auto made = std::make_unique<FakeStopwatch>(true);
  FakeStopwatch& watch = *made;
  LayerTimer timer(std::move(made));
  timer.reset(1);
  watch.ahead = 14;  // two iterations
  for (int n = 0; n < 100; ++n) iterate(timer, watch);
  EXPECT_EQ(timer.ended(), 100);
  EXPECT_THAT(timer.known(), AllOf(Lt(100), Ge(97)));
  EXPECT_EQ(timer.row(timer.known() - 1).forward, 10);
  EXPECT_EQ(timer.row(timer.known() - 1).iteration, 30);
  EXPECT_LT(watch.moments.size(), 4 * 7u);
}

TEST(LayerTimer, AHostThatIsFarAheadIsNotHeldBackAndTimesFewerIterations) {
  auto made = std::make_unique<FakeStopwatch>(true);
  FakeStopwatch& watch = *made;
  LayerTimer timer(std::move(made));
  timer.reset(1);
  watch.ahead = 1'000'000;
  for (int n = 0; n < 100; ++n) iterate(timer, watch);
  EXPECT_EQ(timer.known(), 0);
  EXPECT_EQ(timer.ended(), kMostAhead);
  watch.ahead = 0;
  iterate(timer, watch);
  EXPECT_EQ(timer.known(), kMostAhead + 1);
}

class IterationTimerTest : public ::testing::TestWithParam<bool> {
 protected:
  IterationTimerTest() { timer_.install(plan_); }

  // An iteration with an update of 5 in the forward, of which compute waits for 4, and ops of 3.
  void iterate(std::int64_t number) {
    timer_.layers().forward_begins();
    watch_.time += 10;
    const std::int64_t begin = watch_.now();
    watch_.time += 1;
    const std::int64_t waits = watch_.now();
    watch_.time += 4;
    timer_.layers().waited(waits, watch_.now());
    timer_.layers().leave_out(begin);
    timer_.layers().backward_begins();
    watch_.time += 20;
    timer_.layers().backward_ended();
    std::vector<std::int64_t> ns(plan_[number].ops.size(), watch_.device ? 999 : 3);
    for (std::int32_t place = 0; watch_.device && place < static_cast<std::int32_t>(ns.size()); ++place) {
      Stretch stretch{watch_.now()};
      watch_.time += 3;
      stretch.end = watch_.now();
      watch_.time -= 3;  // on another stream
      timer_.op_ran(number, place, stretch);
    }
    timer_.layers().iteration_ended();
    timer_.ops_ended(number, ns);
  }

  RunPlan plan_ = run_plan_of(testing::synchronous(), testing::three_layers());
  std::unique_ptr<FakeStopwatch> made_ = std::make_unique<FakeStopwatch>(GetParam());
  FakeStopwatch& watch_ = *made_;
  IterationTimer timer_{std::move(made_)};
};

TEST_P(IterationTimerTest, StopsItsClockForWaitsAndKeepsAProfileThroughARestart) {
  timer_.layers().begin_profile(1);
  iterate(0);
  const IterationStatistics sample = timer_.statistics(1, 0, 1, /*wait=*/true);
  EXPECT_TRUE(sample.whole);
  EXPECT_EQ(sample.forward_ns, 10);
  EXPECT_EQ(sample.iteration_ns, 35);
  EXPECT_EQ(sample.exposed_ns, 4);
  EXPECT_THAT(sample.compute_ns, ElementsAre(30));
  EXPECT_THAT(sample.op_ns, Each(3));
  EXPECT_THAT(timer_.iteration_ns(10), ElementsAre(35));
  EXPECT_THAT(timer_.take_iteration_ns(false), ElementsAre(35));
  EXPECT_THAT(timer_.take_iteration_ns(true), IsEmpty());
  timer_.restart();
  EXPECT_THAT(timer_.iteration_ns(10), IsEmpty());
  timer_.ops_ended(0, std::vector<std::int64_t>(plan_[0].ops.size(), 3));
  EXPECT_EQ(timer_.statistics(1, 0, 1, /*wait=*/true).forward_ns, 0);
  EXPECT_EQ(timer_.layers().end_profile().rest_ns, 1);
}

TEST_P(IterationTimerTest, APauseBetweenIterationsIsNoTimeOfThePlan) {
  for (std::int64_t n = 0; n < 5; ++n) {
    watch_.time += n == 2 ? 4'000'000 : 6;
    iterate(n);
  }
  EXPECT_EQ(timer_.statistics(5, 0, 1, /*wait=*/true).iteration_ns, 41);
}

TEST_P(IterationTimerTest, WithoutWaitingItEndsWhereADeviceSurelyIs) {
  watch_.ahead = 2 * static_cast<std::int64_t>(plan_[0].ops.size()) + 30;
  for (std::int64_t n = 0; n < 20; ++n) iterate(n);
  EXPECT_EQ(timer_.statistics(5, 0, 1, false).iterations, GetParam() ? 0 : 5);
  for (std::int64_t n = 20; n < 200; ++n) iterate(n);
  const IterationStatistics sample = timer_.statistics(5, 0, 1, false);
  EXPECT_EQ(sample.first, 195 - timer_.behind());
  EXPECT_TRUE(sample.whole);
  EXPECT_EQ(sample.iteration_ns, 35);
  EXPECT_THAT(sample.op_ns, Each(3));
  if (GetParam()) {
    EXPECT_LT(watch_.moments.size(), 100 * (plan_[0].ops.size() + 5));  // others are forgotten
  }
  watch_.ahead = 1'000'000;
  EXPECT_EQ(timer_.statistics(5, 0, 1, false).whole, !GetParam());
  EXPECT_EQ(timer_.statistics(5, 0, 1, true).first, 195);
}

INSTANTIATE_TEST_SUITE_P(OfTheHostAndOfAnAccelerator, IterationTimerTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Accelerator" : "Host"; });

}  // namespace
}  // namespace gradweave::run
