#include "gradweave/estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <variant>
#include <vector>

#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "testing/plans.h"

namespace gradweave {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Vector = std::vector<double>;

double dot(const Vector& x, const Vector& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

Vector difference(const Vector& x, const Vector& y) {
  Vector z = x;
  for (std::size_t i = 0; i < z.size(); ++i) z[i] -= y[i];
  return z;
}

// Trains by heavy ball on a quadratic of curvatures 1 to `curvature`, with workers whose gradients have noise and, each
// its own, an offset that stays; all gradients grow by a factor from one iteration to the next.
struct Training {
  int workers = 4;
  double noise = 1, offset = 0, curvature = 1, rate = 0.01, momentum = 0.9, growth = 1;
  std::size_t size = 400;

  std::vector<GradientSums> sums(int iterations, std::uint32_t seed) const {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    std::vector<Vector> offsets(static_cast<std::size_t>(workers), Vector(size)), own = offsets, own_before;
    for (Vector& each : offsets)
      for (double& value : each) value = offset * normal(random);
    Vector x(size, 1.0), m(size), mean_before, step;
    std::vector<GradientSums> result;
    for (int t = 0; t <= iterations; ++t) {
      Vector mean(size);
      for (std::size_t i = 0; i < own.size(); ++i) {
        for (std::size_t j = 0; j < size; ++j) {
          const double h = 1 + (curvature - 1) * static_cast<double>(j) / static_cast<double>(size - 1);
          own[i][j] = std::pow(growth, t) * (h * x[j] + offsets[i][j] + noise * normal(random));
          mean[j] += own[i][j] / workers;
        }
      }
      if (t > 0) {
        GradientSums sums{.mean = dot(mean, mean), .mean_change = 0};
        const Vector change = difference(mean, mean_before);
        sums.mean_change = dot(change, change);
        sums.change = dot(change, step);
        sums.step = -dot(step, m);
        for (const Vector& each : own_before) {
          const Vector apart = difference(each, mean_before);
          sums.noise_in_change += rate * dot(apart, apart) / workers;
        }
        for (std::size_t i = 0; i < own.size(); ++i) {
          const Vector moved = difference(own[i], own_before[i]);
          sums.own += dot(own[i], own[i]) / workers;
          sums.own_change += dot(moved, moved) / workers;
        }
        result.push_back(sums);
      }
      for (std::size_t j = 0; j < size; ++j) m[j] = momentum * m[j] + mean[j];
      step.assign(size, 0);
      for (std::size_t j = 0; j < size; ++j) step[j] = -rate * m[j], x[j] += step[j];
      own_before = own;
      mean_before = mean;
    }
    return result;
  }
};

TEST(Estimate, NormsAtTwoBatchSizes) {
  // With a rate of 0 the gradient stays (1, ..., 1), and the noise of one worker has trace 400.
  const Training still{.rate = 0};
  const GradientEstimates found = estimate(still.sums(200, 1), still.workers);
  EXPECT_LT(found.gradient_square.low, 400);
  EXPECT_GT(found.gradient_square.high, 400);
  EXPECT_NEAR(found.gradient_square.high, 400, 15);
  EXPECT_LT(found.noise.low, 400);
  EXPECT_GT(found.noise.high, 400);
  EXPECT_NEAR(found.noise.high, 400, 10);
}

TEST(Estimate, CurvatureAlongTheSteps) {
  // Without noise, on a sphere: exact.
  const Training exact{.noise = 0, .curvature = 1};
  const GradientEstimates found = estimate(exact.sums(10, 1), exact.workers);
  EXPECT_NEAR(found.step.low, 0.01, 1e-9);
  EXPECT_NEAR(found.step.high, 0.01, 1e-9);
  const GradientEstimates mixed = estimate(Training{.noise = 0, .curvature = 9}.sums(10, 1), 4);
  EXPECT_GT(mixed.step.high, 0.01);
  EXPECT_LT(mixed.step.high, 0.09);
}

// The noise that a step and the gradient before share would look like curvature.
TEST(Estimate, NoiseIsNoCurvature) {
  const Training noisy{.noise = 3, .curvature = 1};
  const GradientEstimates found = estimate(noisy.sums(400, 5), noisy.workers);
  EXPECT_LT(found.step.low, 0.01);
  EXPECT_GT(found.step.high, 0.01);
  EXPECT_LT(found.step.high, 0.02);
}

// In few dimensions noise and gradient share directions.
TEST(Estimate, TheIntervalOfTheCurvatureHoldsIt) {
  const Training noisy{.workers = 2, .noise = 3, .momentum = 0, .size = 4};
  int below = 0;
  for (std::uint32_t seed = 0; seed < 400; ++seed)
    below += step_seen_in(noisy.sums(40, seed), noisy.workers).high < noisy.rate ? 1 : 0;
  EXPECT_LE(below, 20);  // 2.5 % on either side
}

// Looks at iterations whose learning rate times curvature is `step`, beside noise of that size.
SeenIterations seen_at(double step, double noise, std::mt19937& random, double learning_rate = 1) {
  std::normal_distribution<double> normal;
  SeenIterations sample{.sums = std::vector<GradientSums>(5), .learning_rate = learning_rate};
  for (GradientSums& each : sample.sums) each.change = step + noise * normal(random), each.step = 1;
  return sample;
}

TEST(Estimate, LooksAgainCountTogetherWhereTheyAreUncertain) {
  std::mt19937 random(1);
  std::vector<SeenIterations> samples;
  for (int n = 0; n < 25; ++n) samples.push_back(seen_at(0.01, 0.3, random));
  EXPECT_LT(step_seen_again(samples, 2).high, 0.1);
  EXPECT_GT(step_seen_again(std::span(samples).last(3), 2).high, 0.1);
}

TEST(Estimate, ACurvatureThatGrowsIsSeenInTheLastLooks) {
  std::mt19937 random(1);
  std::vector<SeenIterations> samples;
  for (int n = 0; n < 22; ++n) samples.push_back(seen_at(0.01, 0.05, random));
  for (int n = 0; n < 3; ++n) samples.push_back(seen_at(0.3, 0.05, random));
  const Range found = step_seen_again(samples, 2);
  EXPECT_LT(found.low, 0.3);
  EXPECT_GT(found.high, 0.3);
}

TEST(Estimate, LooksCountAtTheLearningRateOfTheLast) {
  std::mt19937 random(1);
  const std::vector<SeenIterations> samples = {seen_at(0.01, 0, random, 1), seen_at(0.1, 0, random, 10)};
  const Range found = step_seen_again(samples, 2);
  EXPECT_NEAR(found.low, 0.1, 1e-12);
  EXPECT_NEAR(found.high, 0.1, 1e-12);
}

constexpr double kTenfold = 1.25;  // in ten iterations

TEST(Estimate, WorkersWithTheSameDataDoNotDiffer) {
  for (const double growth : {1.0, kTenfold}) {
    int alarms = 0;
    for (std::uint32_t seed = 0; seed < 2000; ++seed) {
      const Training same{.workers = 2, .rate = 0, .growth = growth, .size = 10};
      alarms += estimate(same.sums(10, seed), 2).workers_differ ? 1 : 0;
    }
    EXPECT_LE(alarms, 4) << growth;  // 0.001 each, and few of these are above 1.5
  }
}

TEST(Estimate, WorkersWithOtherDataDo) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const GradientEstimates found = estimate(Training{.workers = 2, .offset = 1.5}.sums(10, seed), 2);
    EXPECT_TRUE(found.workers_differ);
    EXPECT_NEAR(found.dissimilarity, 1 + 1.5 * 1.5, 1);
    const Training growing{.workers = 2, .offset = 1.5, .rate = 0, .growth = kTenfold};
    EXPECT_TRUE(estimate(growing.sums(10, seed), 2).workers_differ);
  }
}

// One block whose period is these steps.
double progress_of(const Plan& plan, Range step, double noise_over_square) {
  const GradientEstimates estimates{
      .gradient_square = {1, 1}, .noise = {2 * noise_over_square, 2 * noise_over_square}, .step = step};
  return progress(plan, testing::three_layers(), estimates, 2);
}

TEST(Progress, OfMergedGradients) {
  Plan merged = testing::delayed();  // two of each two iterations, a step in every second
  EXPECT_DOUBLE_EQ(progress_of(testing::synchronous(), {0.1, 0.5}, 3), 1);
  EXPECT_DOUBLE_EQ(progress_of(merged, {0, 0}, 3), 1);  // a sum gets as far where steps are small
  // w = q = 2: (2 - 0.1 (4 + 2) / 2) / (2 (1 - 0.1 (1 + 1) / 2)).
  EXPECT_DOUBLE_EQ(progress_of(merged, {0.1, 0.1}, 1), 1.7 / 1.8);
  merged.merge = Merge::kMean;
  EXPECT_DOUBLE_EQ(progress_of(merged, {0, 0}, 3), 0.5);
  // w = 1, q = 1/2: (1 - 0.2 (1 + 3 / 2) / 2) / (2 (1 - 0.2 (1 + 3) / 2)).
  EXPECT_DOUBLE_EQ(progress_of(merged, {0.2, 0.2}, 3), 0.75 / 1.2);
  EXPECT_DOUBLE_EQ(progress_of(merged, {0, 0.2}, 3), 0.5);  // the worst end
  EXPECT_DOUBLE_EQ(progress_of(merged, {3, 3}, 3), 1);      // plain training gets nowhere
  EXPECT_DOUBLE_EQ(progress_of(testing::local_steps(), {0.2, 0.2}, 3), 1);
}

class Objection : public ::testing::Test {
 protected:
  Workload workload = parse_workload(
      R"({"version": 1, "name": "two", "layers": [
        {"name": "a", "forward_us": 100, "backward_us": 200, "tensors": [{"name": "a.w", "numel": 100000, "dtype": "float32"}]},
        {"name": "b", "forward_us": 100, "backward_us": 200, "tensors": [{"name": "b.w", "numel": 100000, "dtype": "float32"}]}]})");
  Cluster cluster = parse_cluster(
      R"({"version": 1, "workers": 2, "workers_per_node": 1, "startup_growth": "linear",
        "links": [{"name": "eth0", "startup_us": 10, "us_per_byte": 0.002, "concurrency": 1}]})");
  StepRule momentum{.momentum = 0.9};

  std::string about(const std::string& scheme, const GradientEstimates& estimates) {
    return objection(std::get<Plan>(make_plan(scheme, workload, cluster, {})), workload, estimates, momentum);
  }
};

TEST_F(Objection, DelayNeedsASmallStep) {
  GradientEstimates estimates{.step = {0.2, 0.3}};
  EXPECT_THAT(about("deft", estimates), HasSubstr("which is stable up to"));
  estimates.step = {0.0001, 0.0002};
  EXPECT_THAT(about("deft", estimates), IsEmpty());
  estimates.step = {0, 0};
  EXPECT_THAT(about("deft", estimates), HasSubstr("not known"));
}

TEST_F(Objection, LocalStepsNeedTheSameData) {
  GradientEstimates estimates{.dissimilarity = 4, .workers_differ = true};
  EXPECT_THAT(about("delayed_averaging", estimates), HasSubstr("learn from different data"));
  EXPECT_THAT(about("local_sgd", estimates), HasSubstr("shuffle"));
  estimates.workers_differ = false;
  EXPECT_THAT(about("delayed_averaging", estimates), IsEmpty());
}

TEST_F(Objection, NothingSpeaksAgainstExactPlans) {
  const GradientEstimates estimates{.dissimilarity = 4, .workers_differ = true, .step = {5, 9}};
  for (const std::string scheme : {"ddp", "wfbp", "dear", "p3", "us_byte"})
    EXPECT_THAT(about(scheme, estimates), IsEmpty());
}

}  // namespace
}  // namespace gradweave
