#include "run/layer_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run/iteration_timer.h"
#include "testing/plans.h"

namespace gradweave::run {
namespace {

using ::testing::ElementsAre;

// Tells what the test says, by numbers that stand for moments where it is an accelerator's.
struct FakeStopwatch : Stopwatch {
  explicit FakeStopwatch(bool accelerator) : accelerator(accelerator) {}

  bool cheap() const override { return !accelerator; }
  std::int64_t now() override {
    marks.push_back(time);
    return accelerator ? static_cast<std::int64_t>(marks.size()) : time;
  }
  std::int64_t leave_out(std::int64_t ns) override {
    time -= accelerator ? 0 : ns;
    return accelerator ? 0 : ns;
  }
  void read(std::span<std::int64_t* const> moments) override {
    for (std::int64_t* const moment : moments) {
      if (accelerator) *moment = marks.at(static_cast<std::size_t>(*moment - 1));
    }
    marks.clear();
  }

  bool accelerator;
  std::int64_t time = 100;
  std::vector<std::int64_t> marks;
};

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

TEST(LayerTimer, WaitsForAnAcceleratorOnlyInAProfile) {
  auto made = std::make_unique<FakeStopwatch>(true);
  const FakeStopwatch& watch = *made;
  LayerTimer timer(std::move(made));
  timer.reset(1);
  timer.forward_begins();
  timer.layer_started(0);
  timer.backward_begins();
  timer.backward_ended();
  EXPECT_FALSE(timer.iteration_ended());
  EXPECT_TRUE(watch.marks.empty());
}

TEST(IterationTimer, StopsItsClockForWaitsAndKeepsAProfileThroughARestart) {
  const RunPlan plan = run_plan_of(testing::synchronous(), testing::three_layers());
  auto made = std::make_unique<FakeStopwatch>(false);
  FakeStopwatch& watch = *made;
  IterationTimer timer(std::move(made));
  timer.install(plan);
  timer.layers().begin_profile(1);
  timer.layers().forward_begins();
  watch.time += 10;
  watch.time += 5;
  timer.layers().leave_out(5);
  timer.waited(4);
  timer.layers().backward_begins();
  watch.time += 20;
  timer.layers().backward_ended();
  timer.ops_ended(0, std::vector<std::int64_t>(plan[0].ops.size(), 3));
  timer.iteration_ended();
  const IterationStatistics sample = timer.statistics(1, 0, 1);
  EXPECT_EQ(sample.forward_ns, 10);
  EXPECT_EQ(sample.iteration_ns, 35);
  EXPECT_EQ(sample.exposed_ns, 4);
  EXPECT_THAT(sample.compute_ns, ElementsAre(30));
  timer.restart();
  timer.ops_ended(0, std::vector<std::int64_t>(plan[0].ops.size(), 3));
  EXPECT_EQ(timer.statistics(1, 0, 1).forward_ns, 0);
  EXPECT_EQ(timer.layers().end_profile().rest_ns, 5);
}

}  // namespace
}  // namespace gradweave::run
