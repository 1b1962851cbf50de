#include "run/iteration_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/plans.h"

namespace gradweave::run {
namespace {

using ::testing::ElementsAre;

TEST(IterationTimer, OfSeveralPassesTheFirstForwardAndTheLastBackwardAreToldLayerByLayer) {
  const RunPlan plan = run_plan_of(testing::synchronous(), testing::three_layers());
  IterationTimer timer;
  timer.install(plan);
  timer.iteration_ended(100);
  for (const std::int64_t pass : {110, 210}) {
    timer.forward_begins(pass);
    timer.layer_started(0, pass);
    timer.layer_started(1, pass + 10);
    timer.layer_started(2, pass + 30);
  }
  timer.backward_begins(300);
  timer.stop_clock(5);  // a wait
  timer.layer_ended(2, 315);
  timer.layer_ended(1, 335);
  timer.layer_ended(0, 365);
  timer.backward_ended(375);
  EXPECT_FALSE(timer.layer_times(1));
  timer.iteration_ended(380);
  const std::optional<LayerTimes> times = timer.layer_times(1);
  ASSERT_TRUE(times);
  EXPECT_THAT(times->forward_ns, ElementsAre(10, 20, 160));
  EXPECT_THAT(times->backward_ns, ElementsAre(40, 20, 10));
  EXPECT_FALSE(timer.layer_times(2));
}

TEST(IterationTimer, KnowsNoLayersOfAForwardThatDidNotStartThemAll) {
  const RunPlan plan = run_plan_of(testing::synchronous(), testing::three_layers());
  IterationTimer timer;
  timer.install(plan);
  timer.iteration_ended(100);
  timer.forward_begins(110);
  timer.layer_started(0, 110);
  timer.backward_begins(120);
  timer.backward_ended(130);
  timer.iteration_ended(140);
  EXPECT_FALSE(timer.layer_times(1));
}

}  // namespace
}  // namespace gradweave::run
