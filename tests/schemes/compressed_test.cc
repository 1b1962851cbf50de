// Compressors with every scheme that sends gradients.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "gradweave/compression.h"
#include "gradweave/cost.h"
#include "gradweave/error.h"
#include "gradweave/schemes.h"
#include "gradweave/validate.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

Workload workload() {
  Workload workload{.name = "w"};
  for (int l = 0; l < 4; ++l) {
    const std::string name = "layer" + std::to_string(l);
    workload.layers.push_back({.name = name,
                               .forward_ns = 100'000,
                               .backward_ns = 200'000,
                               .tensors = {{.name = name + ".weight", .numel = 50'000 * (l + 1)},
                                           {.name = name + ".bias", .numel = 500}}});
  }
  return workload;
}

Cluster cluster() {
  Cluster cluster{.workers = 4};
  cluster.links.push_back({.name = "net", .startup_ns = 10'000, .us_per_byte = {1, 3}});
  return cluster;
}

bool has_option(const SchemeInfo& scheme, std::string_view name) {
  return std::ranges::find(scheme.options, name, &OptionSpec::name) != scheme.options.end();
}

TEST(Compressed, EverySchemeHasTheOptionsOfWhatItSends) {
  for (const SchemeInfo& scheme : schemes()) {
    const bool gradients = scheme.payload == Payload::kGradient;
    EXPECT_TRUE(has_option(scheme, "compressor")) << scheme.name;
    EXPECT_TRUE(has_option(scheme, "compressor_density")) << scheme.name;
    EXPECT_EQ(has_option(scheme, "compressor_rank"), gradients) << scheme.name;
    EXPECT_EQ(has_option(scheme, "outer_momentum"), !gradients) << scheme.name;
  }
  EXPECT_THROW(make_plan("local_sgd", workload(), cluster(), {{"compressor", "fp16"}}), InvalidInput);
}

TEST(Compressed, EveryGradientOpOfEverySchemeSaysItsCompressor) {
  for (const SchemeInfo& scheme : schemes()) {
    if (scheme.payload != Payload::kGradient) continue;
    for (const CompressorInfo& info : compressors()) {
      SCOPED_TRACE(std::string(scheme.name) + " " + std::string(info.name));
      PlanResult result;
      try {
        result = make_plan(scheme.name, workload(), cluster(), {{"compressor", std::string(info.name)}});
      } catch (const InvalidInput& error) {
        EXPECT_FALSE(info.halves) << error.what();
        EXPECT_NE(std::string(error.what()).find("reduce-scatter"), std::string::npos);
        continue;
      }
      ASSERT_TRUE(std::holds_alternative<Plan>(result));
      const Plan& plan = std::get<Plan>(result);
      EXPECT_EQ(plan.options.at("compressor"), info.name);
      EXPECT_TRUE(validate(plan, workload()).valid());
      std::size_t ops = 0;
      for (const std::vector<Iteration>* iterations : {&plan.prologue, &plan.period}) {
        for (const Iteration& iteration : *iterations) {
          for (const Op& op : iteration.ops) {
            if (op.payload != Payload::kGradient) continue;
            ++ops;
            EXPECT_EQ(op.compression.name, info.name);
            EXPECT_NE(op.collective, Collective::kAllReduce);
            EXPECT_TRUE(op.collective == Collective::kCompressed || info.halves);
          }
        }
      }
      const std::vector<Effect> effects = effects_of(plan);
      EXPECT_EQ(ops > 0, std::ranges::find(effects, Effect::kCompressed) != effects.end());
    }
  }
}

TEST(Compressed, CastsHalveADecoupledPairAndOthersAreRefusedByTheValidator) {
  Plan plan = std::get<Plan>(make_plan("dear", workload(), cluster(), {{"compressor", "bf16"}}));
  EXPECT_TRUE(validate(plan, workload()).valid());
  for (Op& op : plan.period[0].ops) op.compression.name = "top_k";
  EXPECT_FALSE(validate(plan, workload()).valid());
}

RC_GTEST_PROP(Compressed, CastsNeverCostMoreAndEveryPlanIsValid, ()) {
  const Workload model = *testing::workloads({.max_layers = 4});
  Cluster links = *testing::clusters({.max_links = 2});
  links.compressor_rates.clear();
  for (const std::string_view name : {"fp16", "bf16"}) {
    const CostModel whole(model, links), cast(model, links, {std::string(name), {}});
    for (std::size_t t = 0; t < whole.index().tensors.size(); ++t) {
      const Slice tensor{t, 0, whole.index().tensors[t].numel};
      for (std::size_t k = 0; k < links.links.size(); ++k) {
        RC_ASSERT(cast.all_reduce(k, tensor) <= whole.all_reduce(k, tensor));
      }
    }
  }
  const std::string compressor((*rc::gen::elementOf(compressors())).name);
  for (const SchemeInfo& scheme : schemes()) {
    if (scheme.payload != Payload::kGradient || scheme.name == "dear") continue;
    const PlanResult planned = make_plan(scheme.name, model, links, {{"compressor", compressor}});
    if (const Plan* plan = std::get_if<Plan>(&planned)) RC_ASSERT(validate(*plan, model, &links).valid());
  }
}

TEST(Compressed, ParametersReachTheOps) {
  const Plan plan = std::get<Plan>(
      make_plan("wfbp", workload(), cluster(), {{"compressor", "top_k"}, {"compressor_density", "0.25"}}));
  EXPECT_EQ(plan.period[0].ops[0].compression, (Compression{"top_k", {{"density", 0.25}}}));
  const Plan ranked = std::get<Plan>(
      make_plan("wfbp", workload(), cluster(), {{"compressor", "power_sgd"}, {"compressor_rank", "2"}}));
  EXPECT_EQ(ranked.period[0].ops[0].compression, (Compression{"power_sgd", {{"rank", 2}}}));
}

TEST(Compressed, AParameterOfAnotherCompressorIsRefused) {
  EXPECT_THROW(make_plan("wfbp", workload(), cluster(), {{"compressor_density", "0.5"}}), InvalidInput);
  EXPECT_THROW(make_plan("wfbp", workload(), cluster(), {{"compressor", "fp16"}, {"compressor_rank", "2"}}),
               InvalidInput);
  EXPECT_THROW(make_plan("wfbp", workload(), cluster(), {{"compressor", "zip"}}), InvalidInput);
}

TEST(Compressed, EffectsAreReadOffThePlan) {
  const auto effects = [](std::string_view scheme, const std::map<std::string, std::string>& options = {}) {
    return effects_of(std::get<Plan>(make_plan(scheme, workload(), cluster(), options)));
  };
  using List = std::vector<Effect>;
  EXPECT_EQ(effects("ddp"), List{Effect::kExact});
  EXPECT_EQ(effects("dear"), List{Effect::kExact});
  EXPECT_EQ(effects("p3"), List{Effect::kExact});
  EXPECT_EQ(effects("local_sgd"), List{Effect::kLocal});
  EXPECT_EQ(effects("delayed_averaging"), List{Effect::kCorrected});
  EXPECT_EQ(effects("ddp", {{"compressor", "bf16"}}), List{Effect::kCompressed});
  Plan late = std::get<Plan>(make_plan("ddp", workload(), cluster()));
  for (Apply& apply : late.period[0].applies) apply.merges = {-1};
  EXPECT_EQ(effects_of(late), List{Effect::kDelayed});
  for (Apply& apply : late.period[0].applies) apply.correction = Correction::kLocal;
  EXPECT_EQ(effects_of(late), List{Effect::kCorrected});
}

}  // namespace
}  // namespace gradweave
