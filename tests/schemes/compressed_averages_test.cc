// Averages of parameters that are compressed, of every scheme that averages.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "gradweave/compression.h"
#include "gradweave/cost.h"
#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "schemes/compressed.h"
#include "solve/intervals.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

using Options = std::map<std::string, std::string>;

// Most bits first.
const std::vector<std::string> kHarmless = {"none", "int8", "int4", "int2", "ef_signsgd"};

std::optional<Plan> plan_of(std::string_view scheme, const Workload& workload, const Cluster& cluster,
                            const Options& options) {
  PlanResult result = make_plan(scheme, workload, cluster, options);
  if (Plan* plan = std::get_if<Plan>(&result)) return std::move(*plan);
  return std::nullopt;
}

std::vector<std::string> averaging_schemes() {
  std::vector<std::string> names;
  for (const SchemeInfo& scheme : schemes()) {
    if (scheme.payload == Payload::kParameter) names.emplace_back(scheme.name);
  }
  return names;
}

std::string random_codec() {
  std::vector<std::string> names;
  for (const CompressorInfo& info : compressors()) {
    if (info.average_cost != nullptr) names.emplace_back(info.name);
  }
  return *rc::gen::elementOf(names);
}

// Costs are exact where no layer has a time of its own: such times are shared out by rounding.
Workload modelled_workload() { return *testing::workloads({.max_numel = 200'000, .given_times = false}); }

// Some measure codecs, and P is the number of workers.
Cluster serial_cluster() {
  Cluster cluster = *testing::clusters({.max_links = 3, .max_workers = 64, .fluid = false});
  if (*rc::gen::arbitrary<bool>()) cluster.compressor_rates["int4"] = {{1, 5}, {2, 5}};
  return cluster;
}

bool hidden(const Plan& plan, const Workload& workload, const Cluster& cluster) {
  const SimulationResult result = simulate(plan, workload, cluster);
  return result.cycle_ns == result.cycle_iterations * result.compute_ns;
}

// 4 layers, 40.0016 MB in float32, 12 ms of computation.
Workload small_workload() {
  Workload workload{.name = "small"};
  for (int l = 0; l < 4; ++l) {
    const std::string name = "layer" + std::to_string(l);
    workload.layers.push_back({.name = name,
                               .forward_ns = 1'000'000,
                               .backward_ns = 2'000'000,
                               .tensors = {{name + ".weight", 1'000'000 * (l + 1), DType::kFloat32},
                                           {name + ".bias", 100, DType::kFloat32}}});
  }
  return workload;
}

Cluster cluster_of(std::int64_t workers, Decimal us_per_byte) {
  Cluster cluster{.workers = workers};
  cluster.links.push_back({.name = "net", .us_per_byte = us_per_byte});
  return cluster;
}

class AveragingScheme : public ::testing::TestWithParam<std::string> {};

TEST_P(AveragingScheme, PlansUnderEveryCodecAreValidAndKeepTheBounds) {
  const bool held = rc::check("valid, the same after JSON, corrected, within bounds", [] {
    const Workload workload = *testing::workloads();
    const Cluster cluster = *testing::clusters({.max_workers = 64});
    Options options{{"compressor", *rc::gen::arbitrary<bool>() ? random_codec() : "auto"}};
    if (*rc::gen::arbitrary<bool>()) options["outer_momentum"] = "0.5";
    const std::optional<Plan> plan = plan_of(GetParam(), workload, cluster, options);
    if (!plan) return;
    const Validation validation = validate(*plan, workload, &cluster);
    if (!validation.valid()) RC_FAIL(validation.violations[0].where + ": " + validation.violations[0].what);
    RC_ASSERT(parse_plan(to_json(*plan)) == *plan);
    const std::string codec = plan->options.at("compressor");
    if (options["compressor"] != "auto") RC_ASSERT(codec == options["compressor"]);
    bool averages = false;
    for (const Iteration& iteration : plan->period) {
      for (const Op& op : iteration.ops) {
        averages = true;
        RC_ASSERT(op.compression.name == (codec == "none" ? "" : codec));
        RC_ASSERT((op.collective == Collective::kCompressed) == (codec != "none"));
      }
      for (const Apply& apply : iteration.applies) {
        if (apply.source == Source::kAveragedParameter && (codec != "none" || plan->outer))
          RC_ASSERT(apply.mode == Mode::kCorrect);
      }
    }
    RC_ASSERT(plan->outer.has_value() == (averages && options.contains("outer_momentum")));
    const SimulationResult result = simulate(*plan, workload, cluster);
    for (const Bound& bound : result.bounds)
      RC_ASSERT(result.iteration_ns() >= bound.iteration_ns * (1 - 1e-12) - 1e-6);
  });
  EXPECT_TRUE(held);
}

TEST_P(AveragingScheme, HasTheOptionsAndSaysWhatItDoes) {
  const Cluster cluster = cluster_of(2, {1, 3});
  const Plan exact = *plan_of(GetParam(), small_workload(), cluster, {});
  EXPECT_FALSE(exact.outer);
  EXPECT_EQ(to_json(exact).find("compress"), std::string::npos);
  Plan same = *plan_of(GetParam(), small_workload(), cluster,
                       {{"compressor", "none"}, {"outer_momentum", "0"}, {"outer_learning_rate", "1"}});
  same.options.clear();
  EXPECT_EQ(same, exact);
  const Plan outer = *plan_of(GetParam(), small_workload(), cluster,
                              {{"outer_momentum", "0.9"}, {"outer_learning_rate", "0.7"}});
  EXPECT_EQ(outer.outer, (Outer{.momentum = 0.9, .learning_rate = 0.7}));
  EXPECT_TRUE(validate(outer, small_workload(), &cluster).valid());
  Workload halves = small_workload();  // whose gains are float32 all the same
  for (Layer& layer : halves.layers) {
    for (Tensor& tensor : layer.tensors) tensor.dtype = DType::kBFloat16;
  }
  const Options momentum{{"outer_momentum", "0.9"}, {"outer_learning_rate", "0.7"}};
  Plan of_halves = *plan_of(GetParam(), halves, cluster, momentum);
  of_halves.workload_hash = outer.workload_hash;
  EXPECT_EQ(of_halves, outer);
  EXPECT_EQ(simulate(of_halves, halves, cluster).iteration_ns(),
            simulate(outer, small_workload(), cluster).iteration_ns());
  for (const char* codec : {"int8", "int4", "int2", "ef_signsgd", "top_k"}) {
    std::vector<Effect> effects{Effect::kCompressed};
    effects.push_back(find_scheme(GetParam()).effect);
    EXPECT_EQ(effects_of(*plan_of(GetParam(), small_workload(), cluster, {{"compressor", codec}})), effects);
  }
  for (const char* codec : {"fp16", "power_sgd", "zip"}) {
    EXPECT_THROW(make_plan(GetParam(), small_workload(), cluster, {{"compressor", codec}}), InvalidInput);
  }
  EXPECT_THROW(make_plan(GetParam(), small_workload(), cluster,
                         {{"compressor", "auto"}, {"compressor_density", "0.1"}}),
               InvalidInput);
  EXPECT_THROW(make_plan(GetParam(), small_workload(), cluster, {{"outer_momentum", "1"}}), InvalidInput);
  const Plan sparse = *plan_of(GetParam(), small_workload(), cluster,
                               {{"compressor", "top_k"}, {"compressor_density", "0.25"}, {"period", "1"}});
  EXPECT_EQ(sparse.period[0].ops.at(0).compression, (Compression{"top_k", {{"density", 0.25}}}));
}

INSTANTIATE_TEST_SUITE_P(Schemes, AveragingScheme, ::testing::ValuesIn(averaging_schemes()),
                         [](const auto& info) { return info.param; });

// 1 byte per ns: 40 ms exact, 10.2 in 8 bits, 5.2 in 4, 1.4 of signs; 12 ms of computation. And 16 times slower.
TEST(CompressedAverages, TheSmallestPeriodIsThatOfTheEncodedBytes) {
  const auto period = [](Decimal rate, const char* codec) {
    return plan_of("delayed_averaging", small_workload(), cluster_of(2, rate),
                   {{"compressor", codec}, {"frequent_share", "0"}})
        ->period.size();
  };
  EXPECT_EQ(period({1, 3}, "none"), 4u);
  EXPECT_EQ(period({1, 3}, "int8"), 1u);
  EXPECT_EQ(period({16, 3}, "none"), 54u);       // 640.0 ms
  EXPECT_EQ(period({16, 3}, "int8"), 14u);       // 162.5 ms
  EXPECT_EQ(period({16, 3}, "int4"), 7u);        // 82.5 ms
  EXPECT_EQ(period({16, 3}, "int2"), 4u);        // 42.5 ms
  EXPECT_EQ(period({16, 3}, "ef_signsgd"), 2u);  // 22.5 ms
}

TEST(CompressedAverages, FewerBitsAreTakenBeforeALongerPeriod) {
  const auto chosen = [](Decimal rate, Options options) {
    options["compressor"] = "auto";
    const Plan plan = *plan_of("delayed_averaging", small_workload(), cluster_of(2, rate), options);
    return std::pair(plan.options.at("compressor"), plan.period.size());
  };
  using Choice = std::pair<std::string, std::size_t>;
  EXPECT_EQ(chosen({1, 4}, {}), Choice("none", 1));
  EXPECT_EQ(chosen({1, 3}, {}), Choice("int8", 1));
  EXPECT_EQ(chosen({2, 3}, {}), Choice("int4", 1));
  EXPECT_EQ(chosen({16, 3}, {}), Choice("ef_signsgd", 2));
  EXPECT_EQ(chosen({16, 3}, {{"period", "14"}}), Choice("int8", 14));
  EXPECT_EQ(chosen({16, 3}, {{"period", "1"}}), Choice("ef_signsgd", 1));  // nothing hides all: the shortest
}

TEST(CompressedAverages, WhatIsHeldIsTheAnchorAndTheEncodedMessage) {
  const Cluster cluster = cluster_of(2, {1, 3});
  const auto extra = [&](const Options& options) {
    const Plan plan = *plan_of("delayed_averaging", small_workload(), cluster, options);
    return validate(plan, small_workload()).facts.extra_bytes;
  };
  const std::int64_t model = 40'001'600;
  EXPECT_EQ(extra({{"period", "1"}}), model);  // all of it is on its way
  EXPECT_NEAR(static_cast<double>(extra({{"period", "1"}, {"compressor", "int4"}})),
              static_cast<double>(model) * (1 + 132. / 1024), 1000);
  EXPECT_NEAR(
      static_cast<double>(extra({{"period", "1"}, {"compressor", "int4"}, {"outer_momentum", "0.5"}})),
      static_cast<double>(model) * (2 + 132. / 1024), 1000);
}

RC_GTEST_PROP(CompressedAverages, ThePeriodIsTheSmallestThatHides, ()) {
  const Workload workload = modelled_workload();
  const Cluster cluster = serial_cluster();
  Options options{{"compressor", random_codec()}};
  const std::optional<Plan> smallest = plan_of("delayed_averaging", workload, cluster, options);
  if (smallest) RC_ASSERT(hidden(*smallest, workload, cluster));
  for (std::int64_t period = 1; period <= 8; ++period) {
    options["period"] = std::to_string(period);
    const Plan plan = *plan_of("delayed_averaging", workload, cluster, options);
    RC_ASSERT(hidden(plan, workload, cluster) ==
              (smallest && period >= static_cast<std::int64_t>(smallest->period.size())));
  }
}

RC_GTEST_PROP(CompressedAverages, AutoHasTheSmallestPeriodOfAllAndTheMostBitsAtIt, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters({.max_workers = 64});
  std::optional<Plan> best;
  for (const std::string& codec : kHarmless) {
    std::optional<Plan> plan = plan_of("delayed_averaging", workload, cluster, {{"compressor", codec}});
    if (plan && (!best || plan->period.size() < best->period.size())) best = std::move(plan);
  }
  RC_ASSERT(plan_of("delayed_averaging", workload, cluster, {{"compressor", "auto"}}) == best);
}

RC_GTEST_PROP(CompressedAverages, WithTheirPeriodGivenOthersTakeTheMostBitsThatAreNearTheFastest, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters({.max_workers = 64});
  const std::string scheme = *rc::gen::element<std::string>("local_sgd", "partial_sgd", "dreamddp");
  const auto time = [&](const std::string& codec) {
    return simulate(*plan_of(scheme, workload, cluster, {{"compressor", codec}}), workload, cluster)
        .iteration_ns();
  };
  double least = std::numeric_limits<double>::infinity();
  for (const std::string& codec : kHarmless) least = std::min(least, time(codec));
  const auto first =
      std::ranges::find_if(kHarmless, [&](const std::string& codec) { return time(codec) <= least * 1.01; });
  RC_ASSERT(plan_of(scheme, workload, cluster, {{"compressor", "auto"}})->options.at("compressor") == *first);
}

// Of the exact solver the stall is minimal, and what the simulator finds.
RC_GTEST_PROP(CompressedAverages, DreamDdpsStallIsTheSimulators, ()) {
  const Workload workload = modelled_workload();
  Cluster cluster = serial_cluster();
  cluster.links.resize(1);
  const Compression codec{random_codec(), {}};
  const std::int64_t period = *rc::gen::inRange(1, 7);
  const Plan plan = *plan_of("dreamddp", workload, cluster,
                             {{"compressor", codec.name}, {"period", std::to_string(period)}});
  const CostModel model(workload, cluster, codec, Payload::kParameter);
  const Packer packer(model, false);
  // Brute force over all cuts of the layers into so many intervals.
  const std::size_t layers = packer.layer_count();
  std::vector<Nanoseconds> least(layers + 1, 0);  // of layers i.., in the sets that are left
  for (std::size_t i = 0; i < layers; ++i) least[i] = std::numeric_limits<Nanoseconds>::max() / 4;
  for (std::int64_t h = 0; h < period; ++h) {
    for (std::size_t i = 0; i <= layers; ++i) {
      std::vector<std::size_t> set;
      for (std::size_t j = i; j < layers; ++j) {
        set.push_back(j);
        least[i] = std::min(least[i], packer.stall(set) + least[j + 1]);
      }
    }
  }
  const SimulationResult result = simulate(plan, workload, cluster);
  RC_ASSERT((result.cycle_ns - result.cycle_iterations * result.compute_ns) * period ==
            least[0] * result.cycle_iterations);
}

TEST(CompressedAverages, AutoTheSchemeTakesThemWhereBothAreAllowed) {
  const Cluster cluster = cluster_of(2, {16, 3});
  const auto chosen = [&](const Options& options) {
    return plan_of("auto", small_workload(), cluster, options)->search_report->chosen;
  };
  EXPECT_EQ(chosen({{"allow", "exact+corrected"}}).options.count("compressor"), 0u);
  const PlanSummary compressed = chosen({{"allow", "exact+corrected+compressed"}});
  EXPECT_EQ(compressed.scheme, "delayed_averaging");
  EXPECT_EQ(compressed.options.at("compressor"), "ef_signsgd");
  // Anchors are as large as the model; exact averages hold what is on its way.
  const PlanSummary small = chosen({{"allow", "corrected+compressed"}, {"max_extra_bytes", "20000000"}});
  EXPECT_EQ(small.scheme, "delayed_averaging");
  EXPECT_EQ(small.options.count("compressor"), 0u);
  const PlanSummary named = chosen({{"allow", "exact+corrected"}, {"compressor", "int4"}});
  EXPECT_EQ(named.scheme, "delayed_averaging");
  EXPECT_EQ(named.options.at("compressor"), "int4");
}

}  // namespace
}  // namespace gradweave
