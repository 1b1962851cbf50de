#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/tune.h"
#include "gradweave/validate.h"

namespace gradweave {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Workload resnet() { return read_workload(GRADWEAVE_SOURCE_DIR "/examples/workloads/resnet50.json"); }
Cluster ethernet() { return read_cluster(GRADWEAVE_SOURCE_DIR "/examples/clusters/eth-10g-16.json"); }

Plan plan_of(std::string_view scheme, const std::map<std::string, std::string>& options = {}) {
  return std::get<Plan>(make_plan(scheme, resnet(), ethernet(), options));
}

double seconds_of(const Plan& plan) { return simulate(plan, resnet(), ethernet()).iteration_ns() * 1e-9; }

void run(PlanTuner& tuner) {
  while (const Plan* plan = tuner.next()) tuner.add(seconds_of(*plan));
}

TEST(PlanTuner, FindsWhatTuningBySimulationFinds) {
  const double best = seconds_of(plan_of("dear"));
  const Plan start = plan_of("dear", {{"buffer_bytes", "25MB"}});
  PlanTuner tuner(resnet(), ethernet(), start, 12);
  EXPECT_EQ(*tuner.next(), start);
  run(tuner);
  EXPECT_LT(seconds_of(tuner.best()), seconds_of(start));
  EXPECT_LT(seconds_of(tuner.best()), 1.02 * best);
  const auto trials = tuner.trials();
  EXPECT_LE(trials.size(), 12U);
  EXPECT_EQ(trials[0].options, (std::map<std::string, std::string>{{"buffer_bytes", "25000000"}}));
  EXPECT_EQ(trials[tuner.best_trial()].options.at("buffer_bytes"), tuner.best().options.at("buffer_bytes"));
}

TEST(PlanTuner, TriesNoPlanTwice) {
  // Two layers: fused or not.
  Workload workload = resnet();
  workload.layers.resize(2);
  const Plan start = std::get<Plan>(make_plan("dear", workload, ethernet(), {{"buffer_bytes", "1"}}));
  PlanTuner tuner(workload, ethernet(), start, 20);
  while (tuner.next() != nullptr) tuner.add(1);
  EXPECT_EQ(tuner.trials().size(), 2U);
}

TEST(PlanTuner, KeepsTheOptionsThatAreNotTuned) {
  const Plan start = plan_of("bytescheduler", {{"tune", "none"}});
  PlanTuner tuner(resnet(), ethernet(), start, 3);
  tuner.next();
  tuner.add(1);
  EXPECT_EQ(tuner.next()->options.at("tune"), "none");
  EXPECT_EQ(tuner.trials()[0].options.size(), 2U);
}

TEST(PlanTuner, PassesOverWhatCannotComeIntoForce) {
  const Plan start = plan_of("ddp");
  PlanTuner tuner(resnet(), ethernet(), start, 4);
  tuner.next();
  tuner.add(1);
  while (tuner.next() != nullptr) tuner.add(std::numeric_limits<double>::infinity());
  EXPECT_EQ(tuner.best(), start);
  EXPECT_EQ(tuner.best_trial(), 0U);
}

TEST(PlanTuner, TriesTheGivenPlansAndWeighsTheirTimes) {
  const Plan dear = plan_of("dear", {{"buffer_bytes", "25MB"}}), ddp = plan_of("ddp"), wfbp = plan_of("wfbp");
  const auto tried = [&](double weight_of_ddp) {
    PlanTuner tuner({{dear}, {ddp, weight_of_ddp}, {wfbp}});
    std::vector<std::string> order;
    while (const Plan* plan = tuner.next()) {
      order.push_back(plan->scheme);
      tuner.add(plan->scheme == "dear" ? 3 : plan->scheme == "ddp" ? 2 : 4);
    }
    EXPECT_EQ(std::vector(order.begin(), order.begin() + 3),
              (std::vector<std::string>{"dear", "ddp", "wfbp"}));
    const auto trials = tuner.trials();
    EXPECT_EQ(trials[0].options.at("buffer_bytes"), "25000000");
    EXPECT_EQ(trials[1].scheme, "ddp");
    EXPECT_DOUBLE_EQ(trials[1].seconds[0], 2);
    EXPECT_EQ(trials[tuner.best_trial()].scheme, tuner.best().scheme);
    return tuner.best().scheme + " of " + std::to_string(order.size());
  };
  EXPECT_EQ(tried(1), "ddp of 7");  // the first and the best are measured three times
  EXPECT_EQ(tried(1.6), "dear of 3");
}

TEST(PlanTuner, OfOneGivenPlanMeasuresThat) {
  PlanTuner tuner({{plan_of("ddp")}});
  ASSERT_NE(tuner.next(), nullptr);
  tuner.add(1);
  EXPECT_EQ(tuner.next(), nullptr);
  EXPECT_EQ(tuner.trials().size(), 1U);
}

class EveryTunedScheme : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryTunedScheme, HasRangesWithinItsOptions) {
  for (const OptionSpec& option : find_scheme(GetParam()).options) {
    if (!option.tuned) continue;
    EXPECT_NE(option.type, OptionType::kText);
    EXPECT_GE(option.tuned->low, option.minimum);
    EXPECT_LE(option.tuned->high, option.maximum);
    EXPECT_LT(option.tuned->low, option.tuned->high);
    EXPECT_TRUE(option.tuned->scale == Scale::kLinear || option.tuned->low > 0);
  }
}

TEST_P(EveryTunedScheme, MakesValidPlansOfTheSameEffects) {
  const Plan start = plan_of(GetParam());
  PlanTuner tuner(resnet(), ethernet(), start, 5);
  while (const Plan* plan = tuner.next()) {
    EXPECT_TRUE(validate(*plan, resnet()).valid());
    EXPECT_EQ(effects_of(*plan), effects_of(start));
    tuner.add(seconds_of(*plan));
  }
  EXPECT_LE(seconds_of(tuner.best()), seconds_of(start));
}

std::vector<std::string> tuned_schemes() {
  std::vector<std::string> names;
  for (const SchemeInfo& scheme : schemes()) {
    if (std::ranges::any_of(scheme.options,
                            [](const OptionSpec& option) { return option.tuned.has_value(); }))
      names.emplace_back(scheme.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Schemes, EveryTunedScheme, ::testing::ValuesIn(tuned_schemes()),
                         [](const auto& info) { return info.param; });

TEST(CheckTuning, SaysWhatCanBeTunedAndWhatExcludesIt) {
  check_tuning(options_of("dear"), 8);
  check_tuning(options_of("auto"), 8);
  EXPECT_THAT([] { check_tuning(options_of("wfbp"), 8); },
              ThrowsMessage<InvalidInput>(HasSubstr("'wfbp' has no option that is tuned")));
  EXPECT_THAT([] { check_tuning(options_of("wfbp"), 8); },
              ThrowsMessage<InvalidInput>(HasSubstr("bytescheduler, us_byte, dear")));
  EXPECT_THAT(
      [] {
        check_tuning(parse_options("dear", {{"layers_per_group", "4"}}), 8);
      },
      ThrowsMessage<InvalidInput>(HasSubstr("exclude each other")));
  EXPECT_THROW(PlanTuner(resnet(), ethernet(), plan_of("wfbp"), 8), InvalidInput);
  EXPECT_THAT([] { check_tuning(options_of("dear"), 1); },
              ThrowsMessage<InvalidInput>(HasSubstr("give 2 to 1000")));
}

}  // namespace
}  // namespace gradweave
