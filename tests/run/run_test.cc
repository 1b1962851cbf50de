// What a run counts and what it finds, on plans written by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradweave/validate.h"
#include "run/fake.h"
#include "run/reference.h"
#include "testing/plans.h"

namespace gradweave {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::FakeHost;
using ::testing::HasSubstr;
using testing::Job;
using testing::Outcome;

TEST(Run, AnUpdateOfManyPartsCountsOnce) {
  for (const Plan& plan : {testing::synchronous(), testing::forward_overlap(), testing::partial()}) {
    const Outcome outcome = testing::train(plan, testing::three_layers(), {}, {5});
    EXPECT_EQ(outcome.counters[0].updates, 5);
    EXPECT_EQ(outcome.counters[0].iterations, 5);
  }
}

// As in the simulator: each iteration ends with the op that compute waits for.
TEST(Run, ADelayOfAReleaseHoldsTheOpThatComputeWaitsFor) {
  Plan plan = testing::synchronous();
  plan.period[0].ops.back().release.delay_ns = 20'000'000;
  const auto begin = run::Clock::now();
  const Outcome outcome = testing::train(plan, testing::three_layers(), {}, {3});
  EXPECT_THAT(outcome.errors, Each(""));
  EXPECT_GE(run::Clock::now() - begin, std::chrono::milliseconds(60));
}

TEST(Run, NoDelayHoldsWhatADrainWaitsFor) {
  Plan plan = testing::delayed();
  for (Iteration& iteration : plan.period) {
    for (Op& op : iteration.ops) op.release = {{PointKind::kIterationEnd, 0, -1}, 20'000'000'000};
  }
  const auto begin = run::Clock::now();
  const Outcome outcome = testing::train(plan, testing::three_layers(), {}, {2});
  EXPECT_THAT(outcome.errors, Each(""));
  EXPECT_EQ(outcome.counters[0].updates, 1);
  EXPECT_LT(run::Clock::now() - begin, std::chrono::seconds(20));
}

TEST(Run, AnUpdateThatIsLeftOutDoesNotCount) {
  const Outcome outcome =
      testing::train(testing::forward_overlap(), testing::three_layers(), {.dropped = 1}, {5});
  EXPECT_EQ(outcome.counters[0].updates, 0);
  EXPECT_EQ(outcome.counters[0].iterations, 5);
}

TEST(Run, ABatchCantBeDroppedOnceItWasStepped) {
  const Outcome outcome = testing::train(testing::partial(), testing::three_layers(), {.dropped = 1}, {5});
  EXPECT_THAT(outcome.errors, Each(AllOf(HasSubstr("parameter 'a'"), HasSubstr("iteration 0"),
                                         HasSubstr("look at the loss before backward()"))));
}

TEST(Run, EveryRankNamesTheRankWhoseGradientIsNotFinite) {
  const Outcome outcome = testing::train(testing::delayed(), testing::three_layers(),
                                         {.world_size = 3, .not_finite_rank = 1}, {5});
  EXPECT_THAT(outcome.errors, Each(AllOf(HasSubstr("iteration 2"), HasSubstr("parameter 'a' on rank 1"))));
}

// Tensor 2 has no gradient in iterations 0 and 1, whose sum is applied in iteration 3, which is to be left out.
TEST(Run, WhatIsLeftOutIsNotSteppedWithAnUpdateThatLacksTheTensor) {
  const Plan plan = testing::corrected();
  const Workload workload = testing::three_layers();
  const Job job{.seed = 0, .world_size = 1, .leaves_unused = true, .spoilt = 0.3};
  ASSERT_FALSE(job.used(0, 0, 2) || job.used(0, 1, 2));
  ASSERT_TRUE(job.used(0, 3, 2) && job.overflows(0, 3));
  testing::Reference reference(plan, workload, job);
  for (int n = 0; n < 4; ++n) reference.iterate();
  reference.drain();
  EXPECT_EQ(testing::train(plan, workload, job, {4}).parameters[0], reference.parameters()[0]);
}

// c's parameters are sent first, and read after its step in the backward. Where layer lc is not used it ends after lb, whose result
// waits behind that message.
TEST(Run, WhatTheBackwardAppliesComesInThePlansOrderWhereLayersAreUnused) {
  Plan plan = testing::synchronous();
  Iteration& iteration = plan.period[0];
  iteration.ops[0].payload = Payload::kParameter;
  iteration.applies = {
      {.at = testing::backward_end(2), .blocks = {3}, .merges = {0}, .source = Source::kLocalGradient},
      {.at = testing::backward_end(0), .blocks = {2}, .merges = {0}},
      {.at = testing::iteration_end(), .blocks = {0, 1}, .merges = {0}},
      {.at = testing::forward_start(2), .blocks = {3}, .merges = {-1}, .source = Source::kAveragedParameter}};
  for (const Violation& v : validate(plan, testing::three_layers()).violations) FAIL() << v.what << v.where;
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    const Job job{.seed = seed, .leaves_unused = true, .one_program = true, .at_once = true};
    testing::Reference reference(plan, testing::three_layers(), job);
    for (int n = 0; n < 6; ++n) reference.iterate();
    reference.drain();
    const Outcome outcome = testing::train(plan, testing::three_layers(), job, {6});
    EXPECT_THAT(outcome.errors, Each("")) << seed;
    EXPECT_EQ(outcome.parameters[0], reference.parameters()[0]) << seed;
  }
}

// Layer lc is corrected in the backward before it steps there. Where one of its tensors is not used, it ends after la.
TEST(Run, WhatTheBackwardAppliesOfATensorComesInThePlansOrderWhereItsLayerEndsLast) {
  Workload workload = testing::three_layers();
  workload.layers[2].tensors.push_back({"d", 2});
  Plan plan = testing::synchronous();
  plan.blocks.push_back({.tensor = "d", .begin = 0, .end = 2});
  plan.period[0].ops[0].blocks = {3, 4};
  plan.period[0].applies = {
      {.at = testing::backward_end(2),
       .blocks = {3, 4},
       .merges = {-1},
       .mode = Mode::kCorrect,
       .correction = Correction::kLocal},
      {.at = testing::backward_end(0), .blocks = {3, 4}, .merges = {0}, .source = Source::kLocalGradient},
      {.at = testing::iteration_end(), .blocks = {0, 1, 2}, .merges = {0}}};
  for (const Violation& v : validate(plan, workload).violations) FAIL() << v.what << v.where;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const Job job{.seed = seed, .leaves_unused = true};
    testing::Reference reference(plan, workload, job);
    for (int n = 0; n < 8; ++n) reference.iterate();
    reference.drain();
    const Outcome outcome = testing::train(plan, workload, job, {8});
    EXPECT_THAT(outcome.errors, Each("")) << seed;
    EXPECT_EQ(outcome.parameters[0], reference.parameters()[0]) << seed;
  }
}

// All is applied before layer 0, which now and then comes later than another, or not at all.
TEST(Run, AnUpdateOfLaterLayersComesBeforeTheirForwardInAnyOrder) {
  Plan plan = testing::forward_overlap();
  plan.period[0].applies = {{.at = testing::forward_start(0), .merges = {-1}}};
  for (std::int32_t b = 0; b < std::ssize(plan.blocks); ++b) plan.period[0].applies[0].blocks.push_back(b);
  ASSERT_TRUE(validate(plan, testing::three_layers()).valid());
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const Job job{.seed = seed, .world_size = 1, .leaves_unused = seed % 2 == 1};
    testing::Reference reference(plan, testing::three_layers(), job);
    for (int n = 0; n < 8; ++n) reference.iterate();
    reference.drain();
    const Outcome outcome = testing::train(plan, testing::three_layers(), job, {8});
    EXPECT_THAT(outcome.errors, Each(""));
    EXPECT_EQ(outcome.parameters[0], reference.parameters()[0]) << seed;
  }
}

// A parameter that is changed behind the plan's back.
TEST(Run, AParameterThatIsChangedWhileItsUpdateIsOnItsWayIsFound) {
  Plan averaged = testing::local_steps();
  averaged.period[0].applies.push_back(averaged.period[1].applies.back());
  averaged.period[1].applies.pop_back();
  averaged.period[0].applies.back().at = testing::forward_start(0);
  averaged.period[0].applies.back().merges = {-1};
  for (const auto& [plan, last] : {std::pair{testing::forward_overlap(), 2}, std::pair{averaged, 3}}) {
    SCOPED_TRACE(last);
    const auto change = [last = last](FakeHost& host, std::int64_t iteration) {
      if (iteration == last) host.change_parameter(1);
    };
    const Outcome outcome = testing::train(plan, testing::three_layers(), {}, {last + 3}, false, change);
    EXPECT_THAT(outcome.errors, Each(AllOf(HasSubstr("parameter 'b'"), HasSubstr("changed after step()"),
                                           HasSubstr("iteration " + std::to_string(last + 1)),
                                           HasSubstr("model.gradweave.synchronize()"))));
  }
}

TEST(Run, AParameterMayBeChangedWhereNothingIsOnItsWay) {
  const auto change = [](FakeHost& host, std::int64_t) { host.change_parameter(1); };
  for (const Plan& plan : {testing::synchronous(), testing::delayed(), testing::delayed_average()}) {
    const Outcome outcome = testing::train(plan, testing::three_layers(), {}, {5}, false, change);
    EXPECT_THAT(outcome.errors, Each(""));
  }
}

// Other ranks would wait for it for ever.
TEST(Run, OpsOfAllLinksAreLaunchedInTheOrderOfTheListWhereABackendNeedsIt) {
  const Outcome outcome =
      testing::train(testing::decoupled(), testing::three_layers(), {.world_size = 2}, {6}, true);
  ASSERT_THAT(outcome.errors, Each(""));
  EXPECT_EQ(outcome.launches[0], outcome.launches[1]);
  EXPECT_TRUE(std::ranges::is_sorted(outcome.launches[0]));
}

}  // namespace
}  // namespace gradweave
