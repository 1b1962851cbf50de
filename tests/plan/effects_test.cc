// What plans do to training and ask of its loop: the families written by hand.
#include "gradweave/effects.h"

#include <gtest/gtest.h>

#include "gradweave/plan.h"
#include "testing/plans.h"

namespace gradweave {
namespace {

TEST(Demands, OfEachFamily) {
  EXPECT_EQ(demands_of(testing::synchronous()), Demands{});
  EXPECT_EQ(demands_of(testing::forward_overlap()),
            (Demands{.steps_in_forward = true, .partial_steps = true}));
  EXPECT_EQ(demands_of(testing::decoupled()), (Demands{.steps_in_forward = true, .partial_steps = true}));
  EXPECT_EQ(demands_of(testing::delayed()), (Demands{.delays_gradients = true}));
  EXPECT_EQ(demands_of(testing::corrected()), (Demands{.delays_gradients = true, .local_steps = true}));
  EXPECT_EQ(demands_of(testing::filtered()), (Demands{.partial_steps = true, .keeps_residual = true}));
  EXPECT_EQ(demands_of(testing::local_steps()), (Demands{.local_steps = true}));
  EXPECT_EQ(demands_of(testing::partial()),
            (Demands{.steps_in_backward = true, .partial_steps = true, .local_steps = true}));
  EXPECT_EQ(demands_of(testing::delayed_average()), (Demands{.local_steps = true}));
  EXPECT_EQ(demands_of(testing::compressed_average()), (Demands{.local_steps = true}));
}

TEST(Demands, OnlyAPlanOfItsOwnGradientsAtTheEndIsSynchronous) {
  for (const auto& [name, plan] : testing::all_families())
    EXPECT_EQ(demands_of(plan).synchronous(), name == "synchronous") << name;
}

TEST(Effects, OfAverages) {
  using List = std::vector<Effect>;
  EXPECT_EQ(effects_of(testing::local_steps()), List{Effect::kLocal});
  EXPECT_EQ(effects_of(testing::delayed_average()), List{Effect::kCorrected});
  EXPECT_EQ(effects_of(testing::compressed_average()), (List{Effect::kCompressed, Effect::kCorrected}));
  Plan at_once = testing::partial();  // before the next step there is nothing to correct
  for (Iteration& iteration : at_once.period) {
    for (Apply& apply : iteration.applies) {
      if (apply.source == Source::kAveragedParameter) apply.mode = Mode::kCorrect;
    }
    for (Op& op : iteration.ops) {
      op.collective = Collective::kCompressed;
      op.compression = {"int8", {}};
    }
  }
  EXPECT_EQ(effects_of(at_once), (List{Effect::kCompressed, Effect::kLocal}));
}

// A step that leaves out one tensor, in one iteration of several, or only while earlier iterations don't exist.
TEST(Demands, FindAStepOfAPart) {
  Plan plan = testing::synchronous();
  const Apply all{.at = testing::iteration_end(), .blocks = {0, 1, 2, 3}, .merges = {0}};
  Apply most = all, last = all;
  most.blocks = {0, 1, 2};
  last.blocks = {3};
  plan.period.push_back(plan.period.front());
  const auto partial = [&](const std::vector<Apply>& applies) {
    plan.period[0].applies = {all};
    plan.period[1].applies = applies;
    return demands_of(plan).partial_steps;
  };
  EXPECT_FALSE(partial({all}));
  EXPECT_FALSE(partial({most, last}));  // next to each other: one step
  EXPECT_TRUE(partial({most}));
  Apply average = last;
  average.source = Source::kAveragedParameter;
  EXPECT_TRUE(partial({most, average, last}));
  EXPECT_FALSE(partial({average, most, last}));
  plan.period.pop_back();
  last.merges = {-1};
  plan.period[0].applies = {most, last};  // in iteration 0 there is nothing for `last`
  EXPECT_TRUE(demands_of(plan).partial_steps);
}

TEST(CutLayers, WhereAnOpMayStartInTheBackward) {
  const Workload workload = testing::three_layers();
  EXPECT_EQ(cut_layers(testing::synchronous(), workload), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(cut_layers(testing::forward_overlap(), workload), (std::vector<std::int32_t>{1, 2}));
  Plan late = testing::synchronous();
  for (Op& op : late.period[0].ops) op.release.point = {.kind = PointKind::kBackwardEnd, .layer = 1};
  EXPECT_EQ(cut_layers(late, workload), (std::vector<std::int32_t>{1}));
  for (Op& op : late.period[0].ops) op.release.point = {.kind = PointKind::kIterationEnd};
  EXPECT_TRUE(cut_layers(late, workload).empty());
}

}  // namespace
}  // namespace gradweave
