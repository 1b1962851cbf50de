// The choice among all schemes.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "gradweave/compression.h"
#include "gradweave/error.h"
#include "gradweave/ranked_plans.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "schemes/candidates.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

using testing::clusters;
using testing::workloads;

// Communication takes about three times as long as compute.
Workload workload() {
  Workload workload{.name = "w"};
  for (int l = 0; l < 5; ++l) {
    const std::string name = "layer" + std::to_string(l);
    workload.layers.push_back({.name = name,
                               .forward_ns = 100'000,
                               .backward_ns = 200'000,
                               .tensors = {{.name = name + ".weight", .numel = 200'000 + 10'000 * l}}});
  }
  return workload;
}

Cluster cluster() {
  Cluster cluster{.workers = 4};
  cluster.links.push_back({.name = "net", .startup_ns = 10'000, .us_per_byte = {1, 3}});
  return cluster;
}

Plan auto_plan(const std::map<std::string, std::string>& options = {}) {
  return std::get<Plan>(make_plan("auto", workload(), cluster(), options));
}

double time_of(const Plan& plan) { return simulate(plan, workload(), cluster()).iteration_ns(); }

bool has_effect(const Plan& plan, Effect effect) {
  const std::vector<Effect> effects = effects_of(plan);
  return std::ranges::find(effects, effect) != effects.end();
}

TEST(Auto, ChoosesNothingPlainlyDelayedUnlessAsked) {
  for (const char* allow :
       {"exact", "exact+corrected", "exact,corrected,local", "exact+compressed+corrected+local"}) {
    EXPECT_FALSE(has_effect(auto_plan({{"allow", allow}}), Effect::kDelayed)) << allow;
  }
  EXPECT_FALSE(has_effect(auto_plan(), Effect::kDelayed));
  EXPECT_TRUE(has_effect(auto_plan({{"allow", "delayed"}}), Effect::kDelayed));
}

TEST(Auto, ChangesNothingButTheSpeedUnlessAsked) {
  EXPECT_EQ(effects_of(auto_plan()), std::vector<Effect>{Effect::kExact});
  EXPECT_EQ(auto_plan().period, auto_plan({{"allow", "exact"}}).period);
}

TEST(Auto, HidesEverythingByCorrectedAveragesWhereTheyAreAllowed) {
  const Plan plan = auto_plan({{"allow", "exact+corrected"}});
  EXPECT_EQ(plan.search_report->chosen.scheme, "delayed_averaging");
  EXPECT_EQ(time_of(plan), 1'500'000);
  EXPECT_GT(time_of(auto_plan()), 1'500'000);
}

TEST(Auto, SaysWhatCorrectedAveragesWouldGive) {
  const Plan exact = auto_plan(), corrected = auto_plan({{"allow", "exact+corrected"}});
  ASSERT_TRUE(exact.search_report->if_corrected.has_value());
  EXPECT_EQ(*exact.search_report->if_corrected, corrected.search_report->chosen);
  EXPECT_EQ(exact.search_report->if_corrected->iteration_us, 1500);
  EXPECT_FALSE(corrected.search_report->if_corrected.has_value());
  // Nothing to say where the exact plan would be preferred in any case.
  EXPECT_FALSE(auto_plan({{"tolerance", "10"}}).search_report->if_corrected.has_value());
}

TEST(Auto, PrefersTheMilderPlanWithinTheTolerance) {
  const Plan strict = auto_plan({{"allow", "exact+corrected"}, {"tolerance", "0"}});
  EXPECT_TRUE(has_effect(strict, Effect::kCorrected));
  const Plan lenient = auto_plan({{"allow", "exact+corrected"}, {"tolerance", "10"}});
  EXPECT_TRUE(has_effect(lenient, Effect::kExact));
  EXPECT_NE(lenient.search_report->reason.find("changes training less"), std::string::npos);
}

TEST(Auto, PrefersTheFirstThatIsFastEnough) {
  const std::vector<double> times{110, 105, 100};
  EXPECT_EQ(first_within(times, 0.1), 0);
  EXPECT_EQ(first_within(times, 0.05), 1);
  EXPECT_EQ(first_within(times, 0), 2);
}

TEST(Auto, AveragesAsOftenAsItsTimeAllows) {
  const Cluster slow = with_bandwidth(cluster(), 0.2);
  const auto chosen = [&](const char* tolerance) {
    const PlanResult plan =
        make_plan("auto", workload(), slow, {{"allow", "local"}, {"tolerance", tolerance}});
    return std::get<Plan>(plan).search_report->chosen;
  };
  const PlanSummary fastest = chosen("0"), frequent = chosen("0.5");
  const auto period = [](const PlanSummary& summary) { return std::stoll(summary.options.at("period")); };
  ASSERT_EQ(frequent.scheme, "dreamddp");
  ASSERT_GT(period(frequent), 1);
  for (std::int64_t shorter = 1; shorter < period(frequent); ++shorter) {
    std::map<std::string, std::string> options = frequent.options;
    options["period"] = std::to_string(shorter);
    const PlanResult other = make_plan("dreamddp", workload(), slow, options);
    EXPECT_GT(simulate(std::get<Plan>(other), workload(), slow).iteration_ns(), 1.5e3 * fastest.iteration_us)
        << shorter;
  }
  EXPECT_EQ(period(chosen("10")), 1);
}

TEST(Auto, PrefersAveragesOnTimeToLateOnes) {
  const auto effects = [](const char* tolerance) {
    return effects_of(auto_plan({{"allow", "corrected+local"}, {"tolerance", tolerance}}));
  };
  EXPECT_EQ(effects("10"), std::vector{Effect::kLocal});
  EXPECT_EQ(effects("0"), std::vector{Effect::kCorrected});  // faster
}

TEST(Auto, PrefersRoundedGradientsToAverages) {
  const auto effects = [](const char* tolerance) {
    return effects_of(auto_plan({{"allow", "compressed+corrected+local"}, {"tolerance", tolerance}}));
  };
  EXPECT_EQ(effects("10"), std::vector{Effect::kCompressed});
  EXPECT_NE(effects("0"), std::vector{Effect::kCompressed});  // averages are faster
  const Plan gradients_of_signs =
      auto_plan({{"allow", "compressed+local"}, {"tolerance", "10"}, {"compressor", "ef_signsgd"}});
  EXPECT_TRUE(has_effect(gradients_of_signs, Effect::kLocal));  // which change more
}

TEST(Auto, KeepsTheLimits) {
  const auto staleness = [](const std::map<std::string, std::string>& options) {
    return simulate(auto_plan(options), workload(), cluster()).staleness_max;
  };
  const std::int64_t late = staleness({{"allow", "delayed+exact"}});
  ASSERT_GT(late, 0);
  EXPECT_EQ(staleness({{"allow", "delayed+exact"}, {"max_staleness", std::to_string(late)}}), late);
  EXPECT_LT(staleness({{"allow", "delayed+exact"}, {"max_staleness", std::to_string(late - 1)}}), late);
  const Plan free = auto_plan({{"allow", "exact+corrected+local"}});
  const std::int64_t extra = validate(free, workload()).facts.extra_bytes;
  ASSERT_GT(extra, 0);
  const Plan enough =
      auto_plan({{"allow", "exact+corrected+local"}, {"max_extra_bytes", std::to_string(extra)}});
  EXPECT_EQ(validate(enough, workload()).facts.extra_bytes, extra);
  const PlanResult tight =
      make_plan("auto", workload(), cluster(),
                {{"allow", "exact+corrected+local"}, {"max_extra_bytes", std::to_string(extra - 1)}});
  if (const Plan* plan = std::get_if<Plan>(&tight)) {
    EXPECT_LT(validate(*plan, workload()).facts.extra_bytes, extra);
  }
}

TEST(Auto, TunesSizesAndChoices) {
  const Workload given = workload();
  const Cluster links = cluster();
  const CandidateMaker maker(given, links);
  const auto tuned = [&](std::string_view scheme) {
    std::vector<Candidate> candidates;
    maker.tune(options_of(scheme), candidates);
    return candidates;
  };
  // 4.4 MB in halves, quarters, ...; smaller buckets gain nothing, a smaller first one starts earlier.
  const std::vector<Candidate> buckets = tuned("ddp");
  ASSERT_EQ(buckets.size(), 1U + 6 + 6);
  using Options = std::map<std::string, std::string>;
  EXPECT_EQ(buckets[0].options.written(), Options{});
  EXPECT_EQ(buckets[1].options.written(), (Options{{"bucket_cap_bytes", "2200000"}}));
  EXPECT_EQ(buckets[6].options.written(), (Options{{"bucket_cap_bytes", "68750"}}));
  EXPECT_EQ(buckets[12].options.written(), (Options{{"first_bucket_bytes", "68750"}}));
  EXPECT_TRUE(faster(buckets[12].result, buckets[0].result));
  const std::vector<Candidate> solvers = tuned("mg_wfbp");
  ASSERT_EQ(solvers.size(), 2U);
  EXPECT_EQ(solvers[1].options.written().at("solver"), "exact");
}

TEST(Auto, SaysWhyNothingIsAdmissible) {
  const PlanResult result =
      make_plan("auto", workload(), cluster(), {{"allow", "delayed"}, {"max_staleness", "0"}});
  ASSERT_TRUE(std::holds_alternative<Infeasible>(result));
  EXPECT_NE(std::get<Infeasible>(result).reason.find("max_staleness"), std::string::npos);
}

TEST(Auto, RefusesAnUnknownEffect) {
  for (const char* allow : {"", "exact+", "fast", "exact delayed"}) {
    EXPECT_THROW(make_plan("auto", workload(), cluster(), {{"allow", allow}}), InvalidInput) << allow;
  }
}

TEST(Auto, CompressesEveryGradientOnceAskedByName) {
  const Plan plan = auto_plan({{"compressor", "fp16"}, {"allow", "exact"}});
  for (const Op& op : plan.period[0].ops) EXPECT_EQ(op.compression.name, "fp16");
  EXPECT_LT(time_of(plan), time_of(auto_plan({{"allow", "exact"}})));
}

TEST(Auto, ReportsWhatItFound) {
  const Plan plan = auto_plan();
  ASSERT_TRUE(plan.search_report.has_value());
  EXPECT_EQ(plan.scheme, "auto");
  EXPECT_EQ(plan.search_report->chosen.iteration_us, time_of(plan) / 1000);
  EXPECT_NE(plan.search_report->reason.find("allowed under exact"), std::string::npos);
  ASSERT_TRUE(plan.search_report->runner_up.has_value());
  EXPECT_NE(plan.search_report->runner_up->scheme, plan.search_report->chosen.scheme);
  EXPECT_LE(plan.search_report->lower_bound_us, plan.search_report->chosen.iteration_us);
  EXPECT_TRUE(plan.options.empty());
}

std::vector<std::string_view> schemes_of(const std::vector<RankedPlan>& plans) {
  std::vector<std::string_view> names;
  for (const RankedPlan& plan : plans)
    names.push_back(find_scheme(plan.plan.search_report->chosen.scheme).name);
  return names;
}

std::vector<RankedPlan> ranking(const std::map<std::string, std::string>& options) {
  return std::get<std::vector<RankedPlan>>(
      ranked_plans(workload(), cluster(), parse_options("auto", options)));
}

TEST(RankedPlans, BeginWithThePlanOfAuto) {
  for (const char* allow : {"exact", "exact+corrected+local", "exact+compressed", "delayed"}) {
    EXPECT_EQ(ranking({{"allow", allow}}).front().plan, auto_plan({{"allow", allow}})) << allow;
  }
}

TEST(RankedPlans, AreAdmissibleValidAndEachTheBestWithoutThoseBefore) {
  const std::vector<RankedPlan> plans = ranking({{"allow", "exact+corrected"}, {"tolerance", "0"}});
  const Workload given = workload();
  const Cluster links = cluster();
  ASSERT_GT(plans.size(), 5U);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    EXPECT_TRUE(validate(plans[i].plan, given, &links).valid());
    EXPECT_EQ(plans[i].effects, effects_of(plans[i].plan));
    EXPECT_EQ(plans[i].demands, demands_of(plans[i].plan));
    EXPECT_EQ(plans[i].prediction.iteration_ns(), time_of(plans[i].plan));
    EXPECT_FALSE(has_effect(plans[i].plan, Effect::kDelayed));
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_LE(plans[j].prediction.iteration_ns(), plans[i].prediction.iteration_ns());
      EXPECT_FALSE(plans[j].plan.search_report->chosen.scheme == plans[i].plan.search_report->chosen.scheme &&
                   plans[j].effects == plans[i].effects && plans[j].demands == plans[i].demands);
    }
  }
  // Somebody who can only step everything in step() finds a plan.
  EXPECT_TRUE(std::ranges::any_of(plans, [](const RankedPlan& plan) { return plan.demands == Demands{}; }));
}

// Under no compressor is a plan chosen that does more to training than that compressor: COVAP's filter is not
// admitted, nor are averages or delays.
TEST(RankedPlans, ACompressorAdmitsItsOwnEffectAlone) {
  for (const CompressorInfo& info : compressors()) {
    const std::string name(info.name);
    const std::vector<RankedPlan> plans = ranking({{"compressor", name}, {"tolerance", "0"}});
    EXPECT_EQ(plans.front().plan.period,
              auto_plan({{"allow", "exact"}, {"compressor", name}, {"tolerance", "0"}}).period);
    for (const RankedPlan& each : plans) {
      EXPECT_EQ(each.effects, std::vector<Effect>{Effect::kCompressed}) << name;
      EXPECT_FALSE(filters_gradients(each.plan)) << name;
      for (const Iteration& iteration : each.plan.period) {
        for (const Op& op : iteration.ops) EXPECT_EQ(op.compression.name, name);
      }
    }
    const std::vector<std::string_view> chosen = schemes_of(plans);
    for (const SchemeInfo& scheme : schemes()) {
      const bool splits = scheme.name == "dear" && !info.halves;
      const bool serves = scheme.effect == Effect::kExact && scheme.name != "auto" && !splits;
      EXPECT_EQ(std::ranges::find(chosen, scheme.name) != chosen.end(), serves) << name << " " << scheme.name;
    }
  }
}

TEST(RankedPlans, CompressGradientsByWhatKeepsTheAccuracyAlone) {
  const Workload given = workload();
  const Cluster slow = with_bandwidth(cluster(), 0.01);
  const auto plans = std::get<std::vector<RankedPlan>>(
      ranked_plans(given, slow, parse_options("auto", {{"allow", "exact+local+compressed"}})));
  std::set<std::string> taken;
  for (const RankedPlan& each : plans) {
    for (const Op& op : each.plan.period[0].ops) {
      if (op.payload == Payload::kGradient && !op.compression.name.empty()) taken.insert(op.compression.name);
    }
  }
  EXPECT_FALSE(taken.empty());
  for (const std::string& name : taken) EXPECT_TRUE(find_compressor(name).keeps_accuracy) << name;
  std::set<std::string_view> known;
  for (const CompressorInfo& info : compressors()) {
    if (info.keeps_accuracy) known.insert(info.name);
  }
  EXPECT_EQ(known, (std::set<std::string_view>{"bf16", "fp16", "int8"}));  // docs/schemes/compressors.md
}

TEST(RankedPlans, AreOfEveryEffectThatIsAllowedBesideACompressor) {
  const auto averaged = ranking({{"allow", "exact+corrected"}, {"compressor", "int4"}});
  EXPECT_TRUE(std::ranges::any_of(averaged, [](const RankedPlan& plan) {
    return plan.effects == std::vector{Effect::kCompressed, Effect::kCorrected};
  }));
  const auto filtered = schemes_of(ranking({{"allow", "exact+compressed"}, {"compressor", "fp16"}}));
  EXPECT_NE(std::ranges::find(filtered, "covap"), filtered.end());
  const auto plain = schemes_of(ranking({{"compressor", "none"}}));
  EXPECT_EQ(std::ranges::find(plain, "covap"), plain.end());
}

// As where averages of gains are staged in the processor's memory, and other messages are not.
TEST(RankedPlans, AreMadeForAndJudgedByWhatTheirOwnMessagesCost) {
  const Workload given = workload();
  const Cluster fast = with_bandwidth(cluster(), 100), slow = with_bandwidth(cluster(), 0.1);
  for (const std::string allow : {"exact+corrected+compressed", "exact+local+compressed"}) {
    const SchemeOptions options = parse_options("auto", {{"allow", allow}, {"tolerance", "0"}});
    for (const bool staged_is_fast : {true, false}) {
      const Cluster &usual = staged_is_fast ? slow : fast, &staged = staged_is_fast ? fast : slow;
      const auto plans = std::get<std::vector<RankedPlan>>(ranked_plans(given, usual, options, &staged));
      int of_gains = 0;
      for (const RankedPlan& each : plans) {
        const Cluster& own = averages_gains(each.plan) ? staged : usual;
        of_gains += averages_gains(each.plan);
        EXPECT_EQ(each.prediction.iteration_ns(), simulate(each.plan, given, own).iteration_ns());
        EXPECT_EQ(each.plan.cluster_hash, hash_of(own));
      }
      EXPECT_GT(of_gains, 0) << allow;
      EXPECT_LT(of_gains, static_cast<int>(plans.size())) << allow;
      // One that averages rarely enough is hidden on any link.
      if (allow.find("corrected") == std::string::npos) {
        EXPECT_EQ(averages_gains(plans.front().plan), staged_is_fast);
      }
    }
  }
}

TEST(RankedPlans, SayWhyThereAreNone) {
  const RankedPlans none = ranked_plans(
      workload(), cluster(), parse_options("auto", {{"allow", "delayed"}, {"max_staleness", "0"}}));
  EXPECT_TRUE(std::holds_alternative<Infeasible>(none));
  EXPECT_THROW(parse_options("auto", {{"allow", "anything"}}), InvalidInput);
}

TEST(Options, AreCheckedWithoutAWorkload) {
  EXPECT_NO_THROW(parse_options("auto", {{"allow", "exact+local"}}));
  const std::pair<const char*, std::map<std::string, std::string>> wrong[] = {
      {"auto", {{"allow", "fast"}}},
      {"covap", {{"interval", "0"}}},
      {"local_sgd", {{"period", "x"}}},
      {"ddp", {{"period", "2"}}},
      {"dear", {{"buffer_bytes", "1"}, {"layers_per_group", "1"}}},
      {"deft", {{"correction", "local"}, {"merge", "mean"}}},
      {"optimal", {{"family", "local"}, {"compressor", "fp16"}}},
      {"dreamddp", {{"forward_overlap", "only"}, {"sets", "arbitrary"}}},
      {"dreamddp", {{"forward_overlap", "only"}, {"solver", "dfs"}}},
      {"ddp", {{"compressor", "fp16"}, {"compressor_rank", "2"}}},
      {"no such scheme", {}}};
  for (const auto& [scheme, options] : wrong)
    EXPECT_THROW(parse_options(scheme, options), InvalidInput) << scheme;
}

RC_GTEST_PROP(Auto, IsDeterministicValidAndNoSlowerThanEveryAllowedScheme, ()) {
  const Workload workload = *workloads({.max_layers = 4, .max_tensors = 2});
  const Cluster cluster = *clusters({.max_links = 2});
  const double tolerance = *rc::gen::element(0.0, 0.1);
  const std::map<std::string, std::string> options = {{"allow", "exact+local+corrected"},
                                                      {"tolerance", std::to_string(tolerance)}};
  const Plan plan = std::get<Plan>(make_plan("auto", workload, cluster, options));
  RC_ASSERT(plan == std::get<Plan>(make_plan("auto", workload, cluster, options)));
  RC_ASSERT(validate(plan, workload, &cluster).violations.empty());
  const double time = simulate(plan, workload, cluster).iteration_ns();
  for (const SchemeInfo& scheme : schemes()) {
    if (scheme.chooses || scheme.effect == Effect::kDelayed || scheme.effect == Effect::kCompressed) continue;
    const PlanResult other = make_plan(scheme.name, workload, cluster);
    if (const Plan* its = std::get_if<Plan>(&other)) {
      RC_ASSERT(time <= simulate(*its, workload, cluster).iteration_ns() * (1 + tolerance) + 1e-6);
    }
  }
}

}  // namespace
}  // namespace gradweave
