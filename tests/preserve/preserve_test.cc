// The Preserver: what steps a plan makes, where the Gaussian walk goes, up to which step training is stable.
#include "gradweave/preserve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/validate.h"
#include "testing/generators.h"
#include "testing/plans.h"
#include "testing/schemes.h"

namespace gradweave {

void PrintTo(const UsedGradient& used, std::ostream* out) { *out << used.weight << " x " << used.iteration; }

namespace {

using Gradients = std::vector<UsedGradient>;

const Updates kPlain{.steps = {{0, {{0, 1}}}}};

// Each gradient d updates old.
Updates late(std::int32_t d) { return {.steps = {{0, {{-d, 1}}}}}; }

double weight_of_a_period(const Updates& updates) {
  double sum = 0;
  for (const UpdateStep& step : updates.steps)
    for (const UsedGradient& used : step.gradients) sum += used.weight;
  return sum;
}

TEST(Updates, OfEachFamily) {
  const Workload workload = testing::three_layers();
  for (const auto& [name, plan] : testing::all_families()) {
    SCOPED_TRACE(name);
    const std::vector<Updates> found = updates_of(plan, workload);
    double share = 0;
    for (const Updates& updates : found) {
      share += updates.share;
      EXPECT_EQ(weight_of_a_period(updates), updates.period);
      if (name == "delayed" || name == "filtered") continue;
      // Whatever else they do, they step by each gradient before the next forward.
      ASSERT_EQ(updates.steps.size(), updates.period);
      for (std::int32_t n = 0; n < updates.period; ++n)
        EXPECT_EQ(updates.steps[n], (UpdateStep{n, {{0, 1}}})) << n;
    }
    EXPECT_DOUBLE_EQ(share, 1);
  }
}

TEST(Updates, OfMergedDelayedAndDroppedGradients) {
  const Workload workload = testing::three_layers();
  Plan delayed = testing::delayed();
  ASSERT_EQ(updates_of(delayed, workload).size(), 1);
  const Updates sum = updates_of(delayed, workload).front();
  ASSERT_EQ(sum.steps.size(), 1);
  EXPECT_EQ(sum.period, 2);
  EXPECT_THAT(sum.steps[0].gradients, ::testing::SizeIs(2));
  for (const UsedGradient& used : sum.steps[0].gradients) {
    EXPECT_EQ(used.weight, 1);
    EXPECT_LT(used.iteration, 0);
  }
  delayed.merge = Merge::kMean;
  const Updates mean = updates_of(delayed, workload).front();
  for (const UsedGradient& used : mean.steps[0].gradients) EXPECT_EQ(used.weight, 0.5);

  Plan filtered = testing::filtered();
  filtered.residual.cap = 0.25;
  for (const Updates& updates : updates_of(filtered, workload)) {
    ASSERT_EQ(updates.steps.size(), 1);
    EXPECT_EQ(updates.steps[0].gradients, (Gradients{{-1, 0.25}, {0, 1}}));
  }
}

class UpdatesOfScheme : public ::testing::TestWithParam<std::string> {};

TEST_P(UpdatesOfScheme, UseEveryGradientOnce) {
  const bool held = rc::check("as plain training, or each gradient once a period", [] {
    const Workload workload = *testing::workloads();
    const Cluster cluster = *testing::clusters();
    const PlanResult result = make_plan(GetParam(), workload, cluster);
    const Plan* plan = std::get_if<Plan>(&result);
    if (plan == nullptr) return;
    const std::vector<Effect> effects = effects_of(*plan);
    const bool delayed = std::ranges::find(effects, Effect::kDelayed) != effects.end();
    for (const Updates& updates : updates_of(*plan, workload)) {
      if (!delayed && !plan->residual.enabled) {
        RC_ASSERT(updates.steps.size() == static_cast<std::size_t>(updates.period));
        for (const UpdateStep& step : updates.steps) RC_ASSERT((step.gradients == Gradients{{0, 1}}));
      }
      std::vector<int> used(static_cast<std::size_t>(updates.period));
      for (const UpdateStep& step : updates.steps) {
        for (const UsedGradient& gradient : step.gradients) {
          RC_ASSERT(gradient.iteration <= 0);
          const std::int32_t at = (step.after + gradient.iteration) % updates.period;
          ++used[static_cast<std::size_t>(at < 0 ? at + updates.period : at)];
        }
      }
      RC_ASSERT(std::ranges::all_of(used, [](int times) { return times == 1; }));
    }
  });
  EXPECT_TRUE(held);
}

INSTANTIATE_TEST_SUITE_P(Schemes, UpdatesOfScheme, ::testing::ValuesIn(testing::scheme_names()),
                         [](const auto& info) { return info.param; });

TEST(Walk, HandWorkedSteps) {
  // No noise: the loss falls by eta mu, and rebounds at the lowest value.
  Walk walk{.loss = 1, .lowest = 0.25, .learning_rate = 0.1, .gradient_square = 2, .batch = 64};
  EXPECT_DOUBLE_EQ(expected_loss(walk, Gradients{{0, 1}}), 0.8);
  EXPECT_DOUBLE_EQ(expected_loss(walk, Gradients{{-1, 1}, {0, 1}}), 0.6);
  EXPECT_DOUBLE_EQ(expected_loss(walk, Gradients{{-1, 0.5}, {0, 0.5}}), 0.8);
  walk.learning_rate = 0.5;
  EXPECT_DOUBLE_EQ(expected_loss(walk, Gradients{{0, 1}}), 0.5);
  // At the lowest value and without a slope, half a normal distribution: tau sqrt(2 / pi), tau = 0.1 * 4 / 8.
  walk = {.loss = 0.25,
          .lowest = 0.25,
          .learning_rate = 0.1,
          .gradient_square = 0,
          .noise_square = 16,
          .batch = 64};
  EXPECT_DOUBLE_EQ(expected_loss(walk, Gradients{{0, 1}}), 0.25 + 0.05 * std::sqrt(2 / std::numbers::pi));
  // A sum of four has twice the deviation, a mean of four half of it.
  const Gradients four{{-3, 1}, {-2, 1}, {-1, 1}, {0, 1}}, mean{{-3, .25}, {-2, .25}, {-1, .25}, {0, .25}};
  EXPECT_DOUBLE_EQ(expected_loss(walk, four), 0.25 + 0.1 * std::sqrt(2 / std::numbers::pi));
  EXPECT_DOUBLE_EQ(expected_loss(walk, mean), 0.25 + 0.025 * std::sqrt(2 / std::numbers::pi));
}

TEST(Walk, IsTheMeanOfRandomWalks) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  struct Case {
    Walk walk;
    Gradients gradients;
  };
  const std::vector<Case> cases{
      {{.loss = 1, .lowest = 0, .learning_rate = 0.1, .gradient_square = 2, .noise_square = 900, .batch = 32},
       {{0, 1}}},
      {{.loss = 0.3,
        .lowest = 0.1,
        .learning_rate = 0.05,
        .gradient_square = 3,
        .noise_square = 400,
        .batch = 16},
       {{-1, 1}, {0, 1}}},
      {{.loss = 0.3,
        .lowest = 0.1,
        .learning_rate = 0.2,
        .gradient_square = 3,
        .noise_square = 50,
        .batch = 8},
       {{-2, 1. / 3}, {-1, 1. / 3}, {0, 1. / 3}}},
  };
  for (const auto& [walk, gradients] : cases) {
    constexpr int kWalks = 1'000'000;
    double sum = 0, squares = 0;
    for (int n = 0; n < kWalks; ++n) {
      double loss = walk.loss;
      for (const UsedGradient& used : gradients) {
        const double rolled =
            walk.gradient_square + std::sqrt(walk.noise_square / walk.batch) * normal(random);
        loss -= used.weight * walk.learning_rate * rolled;
      }
      if (loss < walk.lowest) loss = 2 * walk.lowest - loss;
      sum += loss;
      squares += loss * loss;
    }
    const double mean = sum / kWalks;
    const double error = std::sqrt((squares / kWalks - mean * mean) / kWalks);
    EXPECT_NEAR(expected_loss(walk, gradients), mean, 3 * error);
  }
}

TEST(Walk, ARatioBelowOneGetsLessFar) {
  const Walk walk{
      .loss = 2, .lowest = 0, .learning_rate = 0.01, .gradient_square = 4, .noise_square = 400, .batch = 256};
  const Updates mean{.period = 2, .steps = {{1, {{-1, 0.5}, {0, 0.5}}}}},
      sum{.period = 2, .steps = {{1, {{-1, 1}, {0, 1}}}}};
  EXPECT_EQ(loss_ratio(walk, kPlain, 8), 1);
  EXPECT_LT(loss_ratio(walk, mean, 4), 0.99);
  EXPECT_NEAR(loss_ratio(walk, sum, 4), 1, 1e-3);
}

TEST(Stability, ClosedForms) {
  for (const double b : {0.0, 0.5, 0.9, 0.99}) {
    SCOPED_TRACE(b);
    EXPECT_NEAR(largest_stable_step(kPlain, {.momentum = b}), 2 * (1 + b), 1e-5);
    EXPECT_NEAR(largest_stable_step(kPlain, {.momentum = b, .nesterov = true}), 2 * (1 + b) / (1 + 2 * b),
                1e-5);
    // Adam's: 38 / learning rate at 0.9 (J. Cohen et al., Adaptive gradient methods at the edge of stability, 2022).
    EXPECT_NEAR(largest_stable_step(kPlain, {.momentum = b, .dampening = b}) * (1 - b), 2 * (1 + b), 1e-5);
    EXPECT_NEAR(largest_stable_step(late(1), {.momentum = b}), 1 - b, 1e-5);
  }
  for (const std::int32_t d : {0, 1, 2, 5, 20})
    EXPECT_NEAR(largest_stable_step(late(d), {}), 2 * std::sin(std::numbers::pi / (2 * (2 * d + 1))), 1e-5)
        << d;
  // Two gradients summed at every second forward, without momentum: x (1 - 2 step).
  EXPECT_NEAR(largest_stable_step({.period = 2, .steps = {{1, {{-1, 1}, {0, 1}}}}}, {}), 1, 1e-5);
  EXPECT_NEAR(largest_stable_step({.period = 2, .steps = {{1, {{-1, 0.5}, {0, 0.5}}}}}, {}), 2, 1e-5);
}

// The largest root of z^d (z - 1) (z - b) + step z, by Weierstrass's iteration for all roots at once.
double largest_root(std::int32_t d, double b, double step) {
  using Complex = std::complex<long double>;
  std::vector<Complex> roots;
  for (std::int32_t k = 0; k < d + 2; ++k) roots.push_back(std::pow(Complex(0.4, 0.9), k));
  const auto value = [&](Complex z) {
    return std::pow(z, d) * (z - 1.0L) * (z - Complex(b)) + z * Complex(step);
  };
  for (int round = 0; round < 300; ++round) {
    for (Complex& root : roots) {
      Complex others = 1;
      for (const Complex& other : roots)
        if (&other != &root) others *= root - other;
      if (others != Complex(0)) root -= value(root) / others;
    }
  }
  long double largest = 0;
  for (const Complex& root : roots) largest = std::max(largest, std::abs(root));
  return static_cast<double>(largest);
}

RC_GTEST_PROP(Stability, IsTheCharacteristicPolynomials, ()) {
  const auto d = *rc::gen::inRange(0, 12);
  const double b = *rc::gen::inRange(0, 99) / 100.0, step = *rc::gen::inRange(1, 5000) / 1000.0;
  RC_ASSERT(std::abs(growth(late(d), {.momentum = b}, step) - largest_root(d, b, step)) < 1e-5);
}

// A quadratic of curvature 1, trained by these steps with a learning rate of `step`: the logarithm of the largest
// parameter in the last few periods.
double log_of_trained(const Updates& updates, const StepRule& rule, double step, int periods) {
  constexpr int kLast = 20;
  double x = 1, buffer = 0, largest = 0;
  std::vector<double> forwards(100, 0);  // from before the start on
  for (int period = 0; period < periods; ++period) {
    auto next = updates.steps.begin();
    for (std::int32_t n = 0; n < updates.period; ++n) {
      forwards.push_back(x);
      for (; next != updates.steps.end() && next->after == n; ++next) {
        double gradient = 0;
        for (const UsedGradient& used : next->gradients)
          gradient += used.weight * forwards[forwards.size() - 1 + used.iteration];
        buffer = rule.momentum * buffer + (1 - rule.dampening) * gradient;
        x -= step * (rule.nesterov ? gradient + rule.momentum * buffer : buffer);
      }
    }
    if (period >= periods - kLast) largest = std::max(largest, std::abs(x));
  }
  return std::log(largest);
}

RC_GTEST_PROP(Stability, IsWhatTrainingOnAQuadraticShows, ()) {
  Updates updates{.period = *rc::gen::inRange(1, 5)};
  const bool mean = *rc::gen::arbitrary<bool>();
  // Generations of one iteration after another, each applied some iterations after its last gradient.
  const std::int32_t merged = *rc::gen::element(1, updates.period), delay = *rc::gen::inRange(0, 5);
  for (std::int32_t last = merged - 1; last < updates.period; last += merged) {
    UpdateStep step{.after = last};
    for (std::int32_t n = merged - 1; n >= 0; --n)
      step.gradients.push_back({-n - delay, mean ? 1.0 / merged : 1.0});
    updates.steps.push_back(step);
  }
  const double b = *rc::gen::element(0.0, 0.5, 0.9);
  const StepRule rule{
      .momentum = b, .dampening = *rc::gen::element(0.0, b), .nesterov = *rc::gen::arbitrary<bool>()};
  const double limit = largest_stable_step(updates, rule);
  RC_ASSERT(limit > 0);
  RC_ASSERT(growth(updates, rule, 0.99 * limit) < 1);
  RC_ASSERT(growth(updates, rule, 1.01 * limit) > 1);
  for (const double part : {0.3, 0.9, 1.1}) {
    const double rate = updates.period * std::log(growth(updates, rule, part * limit));
    const int periods = static_cast<int>(std::clamp(400 / std::abs(rate), 100.0, 2000.0));
    // What is lost to the start and to the phase of an oscillation does not grow with the periods.
    RC_ASSERT(std::abs(log_of_trained(updates, rule, part * limit, periods) - periods * rate) <
              20 * std::abs(rate) + 10);
  }
}

// ---- plans that keep the accuracy

class Preserving : public ::testing::Test {
 protected:
  static Measurements measured(double gradient_square, double learning_rate) {
    return {.loss = {2, 2},
            .gradient_square = {gradient_square, gradient_square},
            .noise_square = {10, 10},
            .learning_rate = learning_rate,
            .batch = 256,
            .rule = {.momentum = 0.9},
            .curvature = {2, 2}};
  }
  PreservingPlan made(const std::string& scheme, double gradient_square, double learning_rate) const {
    const Measurements known = measured(gradient_square, learning_rate);
    auto found =
        std::get<PreservingPlan>(make_preserving_plan(workload_, cluster_, options_of(scheme), known));
    EXPECT_TRUE(found.judgement.preserves());
    EXPECT_TRUE(validate(found.plan, workload_).valid());
    EXPECT_TRUE(judge(found.plan, workload_, known).preserves());
    return found;
  }

  const std::string examples_ = GRADWEAVE_SOURCE_DIR "/examples/";
  const Workload workload_ = read_workload(examples_ + "workloads/deft-table2-vgg19.json");
  const Cluster cluster_ = read_cluster(examples_ + "clusters/deft-table2-one-link.json");
};

TEST_F(Preserving, APlanThatKeepsItIsTheSchemesOwn) {
  const PreservingPlan found = made("deft", 0.3, 0.01);
  EXPECT_EQ(found.capacity, 1);
  EXPECT_EQ(found.attempts, 1);
  EXPECT_EQ(found.plan, std::get<Plan>(make_plan("deft", workload_, cluster_)));
}

// Generations that are merged for too long, early in training: the least capacity at which they are not.
TEST_F(Preserving, CapacityGrowsNoFurtherThanItMust) {
  const PreservingPlan found = made("deft", 30, 0.01);
  ASSERT_FALSE(found.exact_instead);
  ASSERT_GT(found.attempts, 1);
  const double factor = std::pow(found.capacity, 1.0 / (found.attempts - 1));
  double capacity = 1;
  for (std::int32_t attempt = 1; attempt < found.attempts; ++attempt) {
    Workload longer = workload_;
    for (Layer& layer : longer.layers) {
      layer.forward_ns = std::llround(static_cast<double>(layer.forward_ns) * capacity);
      layer.backward_ns = std::llround(static_cast<double>(layer.backward_ns) * capacity);
    }
    const Plan plan = std::get<Plan>(make_plan("deft", longer, cluster_));
    EXPECT_FALSE(judge(plan, workload_, measured(30, 0.01)).preserves()) << capacity;
    capacity *= factor;
  }
  const auto updates = [](const PreservingPlan& made) {
    return made.judgement.blocks.front().updates.steps.size();
  };
  EXPECT_GE(updates(found), updates(made("deft", 0.3, 0.01)));
}

// No capacity makes up for a delay that the learning rate doesn't allow.
TEST_F(Preserving, ElseItIsTheBestExactPlan) {
  const PreservingPlan found = made("deft", 0.3, 0.2);
  EXPECT_TRUE(found.exact_instead);
  EXPECT_EQ(found.attempts, 11);
  EXPECT_EQ(found.plan, std::get<Plan>(make_plan("auto", workload_, cluster_)));
  EXPECT_EQ(made("dear", 0.3, 0.2).capacity, 1);
}

TEST(LateTensors, AreThoseWithoutAPromptStep) {
  const Workload workload = testing::three_layers();
  EXPECT_THAT(late_tensors(testing::delayed(), workload), ::testing::ElementsAre("a", "b", "c"));
  EXPECT_THAT(late_tensors(testing::synchronous(), workload), ::testing::IsEmpty());
  EXPECT_THAT(late_tensors(testing::corrected(), workload), ::testing::IsEmpty());
  Plan mixed = testing::delayed();  // one of a's two blocks is prompt
  for (Apply& apply : mixed.period[1].applies) std::erase(apply.blocks, 0);
  mixed.period[0].ops.push_back(mixed.period[0].ops[0]);
  mixed.period[0].ops.back().blocks = {0};
  mixed.period[0].ops.back().merges = {0};
  mixed.period[0].applies = {{.at = {.kind = PointKind::kIterationEnd}, .blocks = {0}, .merges = {0}}};
  EXPECT_THAT(late_tensors(mixed, workload), ::testing::ElementsAre("b", "c"));
}

}  // namespace
}  // namespace gradweave
