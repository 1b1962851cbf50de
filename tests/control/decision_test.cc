#include "control/decision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>

#include "control/gradient_watch.h"
#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/schemes.h"

namespace gradweave::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Workload three_layers() {
  Workload workload{.name = "three"};
  for (const char* name : {"a", "b", "c"}) {
    workload.layers.push_back({.name = name,
                               .forward_ns = 1'000'000,
                               .backward_ns = 2'000'000,
                               .tensors = {{.name = std::string(name) + ".w", .numel = 50'000}}});
  }
  return workload;
}

// VGG-19's proportions: one tensor has most elements, and covap steps slices of it.
Workload large_tensor() {
  Workload workload{.name = "large tensor"};
  for (const std::int64_t numel : {1728, 590'000, 2'359'296, 102'760'448, 16'777'216, 4'096'000}) {
    const std::string name = "layer" + std::to_string(workload.layers.size());
    workload.layers.push_back({.name = name,
                               .forward_ns = 1'000'000,
                               .backward_ns = 2'000'000,
                               .tensors = {{.name = name + ".w", .numel = numel}}});
  }
  return workload;
}

Cluster network(double us_per_byte = 0.02) {
  return {
      .workers = 2,
      .links = {
          {.name = "net", .startup_ns = 100'000, .us_per_byte = decimal_from_double(us_per_byte, "rate")}}};
}

Grounds grounds_of(const std::string& scheme, const std::map<std::string, std::string>& options = {}) {
  return {.request = {scheme, options}, .unrunnable = [](const Plan&, const Workload&) { return ""; }};
}

bool delays(const Plan& plan) { return demands_of(plan).delays_gradients; }

TEST(Decision, AutoGivesItsPlansBestFirstAndTheStarterLast) {
  const Decision decision = decide(three_layers(), {network()}, grounds_of("auto"));
  EXPECT_EQ(decision.error, "");
  EXPECT_EQ(decision.passed_over, "");
  ASSERT_GE(decision.candidates.size(), 2u);
  EXPECT_LE(decision.candidates.front().prediction.iteration_ns(), *decision.ddp_ns);
  EXPECT_EQ(decision.candidates.back().scheme, kStarter);
}

TEST(Decision, APlanThatTheLoopDoesNotSupportIsPassedOver) {
  Grounds grounds = grounds_of("auto");
  ASSERT_TRUE(
      demands_of(decide(three_layers(), {network()}, grounds).candidates.front().plan).steps_in_forward);
  grounds.loop.saw("edits", "here");
  const Decision decision = decide(three_layers(), {network()}, grounds);
  EXPECT_FALSE(demands_of(decision.candidates.front().plan).steps_in_forward);
  EXPECT_THAT(decision.passed_over, HasSubstr("was not chosen, because the loop changes gradients"));
  EXPECT_THAT(decision.passed_over, HasSubstr("(here)"));
}

TEST(Decision, AveragesAreNotRecommendedToALoopThatCanNotRunThem) {
  Grounds grounds = grounds_of("auto");
  EXPECT_TRUE(decide(three_layers(), {network()}, grounds).if_corrected);
  grounds.unrunnable = [](const Plan& plan, const Workload&) {
    return effects_of(plan).front() == Effect::kExact ? "" : "two optimizers";
  };
  EXPECT_FALSE(decide(three_layers(), {network()}, grounds).if_corrected);
}

TEST(Decision, APlanThatTheEngineCanNotRunIsPassedOver) {
  Grounds grounds = grounds_of("auto");
  const Plan best = decide(three_layers(), {network()}, grounds).candidates.front().plan;
  grounds.unrunnable = [&](const Plan& plan, const Workload&) {
    return plan == best ? "it is too good" : "";
  };
  const Decision decision = decide(three_layers(), {network()}, grounds);
  EXPECT_NE(decision.candidates.front().plan, best);
  EXPECT_THAT(decision.passed_over, HasSubstr("because it is too good"));
}

TEST(Decision, ASchemeThatWasAskedForIsRefusedWhereTheLoopDoesNotSupportIt) {
  Grounds grounds = grounds_of("p3");
  grounds.loop.saw("evaluates");
  const Decision decision = decide(three_layers(), {network()}, grounds);
  EXPECT_TRUE(decision.candidates.empty());
  EXPECT_THAT(decision.error,
              HasSubstr("scheme 'p3' doesn't work with this loop: the loop has an optimizer"));
}

TEST(Decision, CovapIsPlannedWithoutSlicesWhereTheOptimizerNeedsWholeTensors) {
  const auto sliced = [](const Grounds& grounds) {
    const Decision decision = decide(large_tensor(), {network(1e-4)}, grounds);
    return !decision.candidates.empty() && demands_of(decision.candidates.front().plan).slices;
  };
  Grounds grounds = grounds_of("covap");
  EXPECT_TRUE(sliced(grounds));
  EXPECT_FALSE(sliced(grounds_of("covap", {{"slices", "off"}})));
  grounds.loop.saw("couples elements", "Adafactor");
  EXPECT_FALSE(sliced(grounds));
  EXPECT_EQ(decide(large_tensor(), {network(1e-4)}, grounds).error, "");
  const auto demands = expected_demands({"covap", {}}, large_tensor(), {{"net"}}, 2);
  ASSERT_TRUE(demands);
  EXPECT_NO_THROW(grounds.loop.bind("covap", *demands));
  grounds.request.options = {{"slices", "on"}};
  EXPECT_THAT(decide(large_tensor(), {network(1e-4)}, grounds).error, HasSubstr("slices=off"));
}

TEST(Decision, AnErrorOfAPlannerIsTheDecision) {
  Grounds grounds = grounds_of("ddp");
  grounds.unrunnable = [](const Plan&, const Workload&) -> std::string { throw std::bad_alloc(); };
  EXPECT_THAT(decide(three_layers(), {network()}, grounds).error, HasSubstr("bad_alloc"));
  EXPECT_THAT(decide(three_layers(), {network()}, grounds_of("none such")).error, HasSubstr("none such"));
}

// Gradients without noise: a mean of k of them gets 1 / k as far as k steps.
GradientsSeen without_noise() {
  return {.estimates = {.gradient_square = {1, 1}, .noise = {0, 0}, .step = {0.001, 0.001}},
          .rule = StepRule{}};
}

TEST(Decision, ProgressCountsAndNotTheTimeOfAnIterationAlone) {
  Grounds grounds = grounds_of("auto", {{"allow", "exact+delayed"}});
  const Decision fast = decide(three_layers(), {network()}, grounds);
  ASSERT_TRUE(delays(fast.candidates.front().plan));
  grounds.gradients = without_noise();
  const double far = grounds.gradients->progress(fast.candidates.front().plan, fast.workload);
  const Decision sound = decide(three_layers(), {network()}, grounds);
  const auto time = [&](const Candidate& each) {
    return time_to_progress(each, sound.workload, grounds.gradients);
  };
  EXPECT_LT(far, 1);
  EXPECT_LE(time(sound.candidates.front()), 1.1 * time(fast.candidates.front()));
  if (!delays(sound.candidates.front().plan)) {
    EXPECT_THAT(sound.passed_over, HasSubstr("times the progress of plain training in an iteration"));
  }
}

TEST(Decision, WhereGradientsWereToBeComparedAndWereNotAutoTakesNoPlanThatTheyHaveToSupport) {
  Grounds grounds = grounds_of("auto", {{"allow", "exact+delayed"}});
  grounds.unseen = true;
  const Decision decision = decide(three_layers(), {network()}, grounds);
  EXPECT_FALSE(delays(decision.candidates.front().plan));
  EXPECT_THAT(decision.passed_over, HasSubstr("were not compared"));
}

TEST(Decision, WhereAllPlansGetAsFarTheOneThatChangesTrainingLeastIsPreferred) {
  const std::vector<double> mild{105, 100, 130, 135}, slower{105 / 0.9, 100, 130, 135},
      slowest{105 / 0.7, 100, 130, 135};
  EXPECT_THAT(order_within(mild, 0.1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(order_within(slower, 0.1), ElementsAre(1, 0, 2, 3));
  EXPECT_THAT(order_within(slowest, 0.1), ElementsAre(1, 2, 3, 0));
}

TEST(Decision, JudgesAPlanThatAveragesGainsByWhatThoseCost) {
  const Grounds grounds = grounds_of("auto", {{"allow", "exact+local+compressed"}});
  const Decision decision = decide(three_layers(), {.usual = network(1), .staged = network(1e-4)}, grounds);
  EXPECT_TRUE(averages_gains(decision.candidates.front().plan));
  EXPECT_FALSE(averages_gains(decision.candidates.back().plan));
  for (const Candidate& each : decision.candidates) {
    const Cluster cluster = averages_gains(each.plan) ? network(1e-4) : network(1);
    EXPECT_EQ(each.prediction.iteration_ns(), simulate(each.plan, decision.workload, cluster).iteration_ns());
  }
  EXPECT_EQ(decision_of(to_text(decision)).costs.staged, decision.costs.staged);
  EXPECT_TRUE(may_average_gains(grounds.request, three_layers(), {{"net"}}, 2));
  for (const char* allow : {"exact", "exact+local", "exact+compressed"})
    EXPECT_FALSE(may_average_gains({"auto", {{"allow", allow}}}, three_layers(), {{"net"}}, 2)) << allow;
  EXPECT_TRUE(may_average_gains({"auto", {{"allow", "local"}, {"compressor", "int4"}}}, three_layers(),
                                {{"net"}}, 2));
}

TEST(Decision, CountsWhatAnIterationTakesBesidesLayersAndMessages) {
  const SimulationOptions overheads{.optimizer_ns = 5'000'000, .contention = {12, 1}};
  for (const char* scheme : {"auto", "ddp"}) {
    const Decision decision =
        decide(three_layers(), {.usual = network(), .overheads = overheads}, grounds_of(scheme));
    ASSERT_FALSE(decision.candidates.empty()) << decision.error;
    const auto simulated = [&](const Plan& plan) {
      return simulate(plan, three_layers(), network(), overheads).iteration_ns();
    };
    for (const Candidate& each : decision.candidates)
      EXPECT_EQ(each.prediction.iteration_ns(), simulated(each.plan));
    EXPECT_EQ(decision.ddp_ns, simulated(std::get<Plan>(make_plan("ddp", three_layers(), network()))));
  }
}

TEST(Decision, GoesToOtherRanksAsText) {
  const SimulationOptions overheads{
      .optimizer_ns = 5'000'000, .contention = {1234, 3}, .burst_ns = 2'905'708};
  const Decision decision =
      decide(three_layers(), {.usual = network(), .overheads = overheads}, grounds_of("auto"));
  const Decision read = decision_of(to_text(decision));
  EXPECT_EQ(read.workload, decision.workload);
  EXPECT_EQ(read.costs.usual, decision.costs.usual);
  EXPECT_EQ(read.costs.overheads.optimizer_ns, overheads.optimizer_ns);
  EXPECT_EQ(read.costs.overheads.contention, overheads.contention);
  EXPECT_EQ(read.costs.overheads.burst_ns, overheads.burst_ns);
  ASSERT_EQ(read.candidates.size(), decision.candidates.size());
  for (std::size_t n = 0; n < read.candidates.size(); ++n) {
    EXPECT_EQ(read.candidates[n].plan, decision.candidates[n].plan);
    EXPECT_EQ(read.candidates[n].scheme, decision.candidates[n].scheme);
  }
  EXPECT_THROW(decision_of("nothing"), InvalidInput);
  EXPECT_THROW(decision_of("2:1:a1:b"), InvalidInput);
}

TEST(Loop, DoesNothingThatIsNoTrait) {
  Loop loop;
  EXPECT_THROW(loop.saw("clip"), std::logic_error);
  EXPECT_NO_THROW(loop.saw("clips"));
}

TEST(Loop, IsRefusedAtOnceWhatItsBoundSchemeDoesNotSupport) {
  Loop loop;
  loop.bind("p3", {.steps_in_forward = true, .partial_steps = true});
  EXPECT_NO_THROW(loop.saw("clips"));
  EXPECT_THROW(loop.saw("edits"), InvalidInput);
  EXPECT_TRUE(loop.seen("edits"));
  EXPECT_FALSE(loop.seen("scales"));
}

TEST(Checks, GradientsAreComparedWhereAutoMayDelayOrCorrectThem) {
  const auto compared = [](const std::string& allow) {
    return iterations_compared({"auto", {{"allow", allow}}}, true, 0) > 0;
  };
  for (const char* allow : {"exact+delayed", "local", "exact+compressed+corrected"})
    EXPECT_TRUE(compared(allow)) << allow;
  for (const char* allow : {"exact", "exact+compressed"}) EXPECT_FALSE(compared(allow)) << allow;
}

TEST(Checks, WhatAnEngineCanNotRunOfOptionsIsRefusedByElementType) {
  const Unrunnable halves_only = [](const Plan&, const Workload& workload) -> std::string {
    return workload.layers[0].tensors[0].dtype == DType::kFloat64 ? "float32 parameters only" : "";
  };
  const Request request{"delayed_averaging", {{"compressor", "int4"}}};
  EXPECT_NO_THROW(check_runs(request, {{.name = "w", .numel = 3}}, 2, 1, halves_only));
  EXPECT_THROW(check_runs(request, {{.name = "w", .numel = 3, .dtype = DType::kFloat64}}, 2, 1, halves_only),
               InvalidInput);
  EXPECT_NO_THROW(check_runs({"delayed_averaging", {}}, {{.name = "w", .numel = 3, .dtype = DType::kFloat64}},
                             2, 1, halves_only));
}

TEST(Checks, OfTwoLevelsTheSchemeItselfIsLookedAt) {
  const Unrunnable no_averages = [](const Plan& plan, const Workload&) -> std::string {
    return has_levels(plan) && effects_of(plan).front() == Effect::kLocal ? "exact gradients only" : "";
  };
  const std::vector<Tensor> tensors{{.name = "w", .numel = 3}};
  EXPECT_THROW(check_runs({"local_sgd", {}}, tensors, 4, 2, no_averages), InvalidInput);
  EXPECT_NO_THROW(check_runs({"local_sgd", {}}, tensors, 4, 1, no_averages));
  EXPECT_NO_THROW(check_runs({"dear", {}}, tensors, 4, 2, no_averages));
}

}  // namespace
}  // namespace gradweave::control
