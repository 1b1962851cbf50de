#include "solve/bayesian.h"

#include <gtest/gtest.h>

#include <cmath>

#include "solve/gaussian_process.h"

namespace gradweave {
namespace {

Eigen::VectorXd vector(std::vector<double> values) {
  Eigen::VectorXd vector(static_cast<Eigen::Index>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) vector(static_cast<Eigen::Index>(i)) = values[i];
  return vector;
}

TEST(GaussianProcess, PassesThroughItsPointsAndIsUnsureBetween) {
  const Eigen::VectorXd points = vector({0, 0.3, 0.6, 1});
  const Eigen::VectorXd values = vector({5, 1, 2, 9});
  const GaussianProcess process(points.transpose(), values);
  for (int i = 0; i < 4; ++i) {
    const auto at = process.predict(vector({points(i)}));
    EXPECT_NEAR(at.mean, process.standardised(values(i)), 1e-3);
    EXPECT_LT(at.deviation, 0.01);
  }
  EXPECT_GT(process.predict(vector({0.8})).deviation, process.predict(vector({0.6})).deviation);
}

// Two points, values -1 and 1 once standardised, s = 1, n = 0.1. k(1) = (1 + sqrt5 + 5/3) exp(-sqrt5) = 0.523994, so
// that K + n I has the eigenvalue 1.1 - k(1) for (-1, 1) and 1.1 + k(1) for (1, 1).
TEST(GaussianProcess, AgreesWithAPosteriorWorkedByHand) {
  const GaussianProcess process(vector({0, 1}).transpose(), vector({4, 10}),
                                {.length_scales = {1}, .noises = {0.1}});
  EXPECT_EQ(process.standardised(10), 1);
  EXPECT_NEAR(process.predict(vector({0})).mean, (0.523994 - 1) / (1.1 - 0.523994), 1e-6);
  EXPECT_NEAR(process.predict(vector({0.25})).mean, -0.477968, 1e-6);
  EXPECT_NEAR(process.predict(vector({0.5})).mean, 0, 1e-12);
  // k(1/2) = 0.828649: 1 - 2 k(1/2)^2 / (1.1 + k(1))
  EXPECT_NEAR(process.predict(vector({0.5})).deviation, 0.392883, 1e-6);
}

TEST(GaussianProcess, TakesNoiseForWhatScattersAndNoneForWhatDoesNot) {
  Eigen::MatrixXd points(1, 12);
  Eigen::VectorXd smooth(12), scattered(12);
  for (int i = 0; i < 12; ++i) {
    points(0, i) = i / 2 / 5.0;  // each point twice
    smooth(i) = points(0, i);
    scattered(i) = points(0, i) + (i % 2 == 0 ? 0.2 : -0.2);
  }
  const GaussianProcessGrid grid{.noises = {1e-4, 0.01, 0.3}};
  EXPECT_EQ(GaussianProcess(points, smooth, grid).noise(), 1e-4);
  EXPECT_EQ(GaussianProcess(points, scattered, grid).noise(), 0.3);
}

TEST(ExpectedImprovement, AgreesWithValuesWorkedByHand) {
  EXPECT_NEAR(expected_improvement({0, 1}, 0, 0), 0.3989423, 1e-7);      // phi(0)
  EXPECT_NEAR(expected_improvement({-1, 1}, 0, 0), 1.0833155, 1e-7);     // Phi(1) + phi(1)
  EXPECT_NEAR(expected_improvement({0.5, 2}, 0, 0.1), 0.5335225, 1e-7);  // -0.6 Phi(-0.3) + 2 phi(-0.3)
  EXPECT_EQ(expected_improvement({-0.5, 0}, 0, 0.1), 0.4);
  EXPECT_EQ(expected_improvement({0.5, 0}, 0, 0.1), 0);
}

TEST(GaussianProcess, TakesALongScaleForASmoothFunctionAndAShortOneForNoise) {
  Eigen::MatrixXd points(1, 12);
  Eigen::VectorXd smooth(12), rough(12);
  for (int i = 0; i < 12; ++i) {
    points(0, i) = i / 11.0;
    smooth(i) = points(0, i) * points(0, i);
    rough(i) = (i * 7 % 12) % 2 == 0 ? 1 + i % 5 : -1 - i % 3;
  }
  EXPECT_GT(GaussianProcess(points, smooth).length_scale(), GaussianProcess(points, rough).length_scale());
}

TEST(GaussianProcess, OneOrEqualValuesDoNotDivideByZero) {
  const GaussianProcess process(Eigen::MatrixXd::Zero(2, 1), vector({3}));
  EXPECT_EQ(process.standardised(3.0), 0);
  EXPECT_TRUE(std::isfinite(process.predict(vector({1, 1})).mean));
}

double bowl(const CubePoint& x) { return std::pow(x[0] - 0.7, 2) + std::pow(x[1] - 0.2, 2); }

TEST(Minimise, ComesCloserThanItsFirstTrials) {
  const BayesianResult result = minimise(bowl, 2, {.trials = 30});
  EXPECT_EQ(result.values.size(), 30U);
  EXPECT_LT(result.value, 0.01);
  EXPECT_EQ(result.value, bowl(result.point));
}

TEST(Minimise, IsDeterministicForASeed) {
  const BayesianOptions options{.trials = 15, .seed = 4};
  EXPECT_EQ(minimise(bowl, 2, options).values, minimise(bowl, 2, options).values);
  EXPECT_NE(minimise(bowl, 2, options).values, minimise(bowl, 2, {.trials = 15, .seed = 5}).values);
}

TEST(Minimise, StopsAtAValueThatCannotBeBeaten) {
  int calls = 0;
  const auto flat = [&](const CubePoint&) { return static_cast<double>(++calls > 0); };
  EXPECT_EQ(minimise(flat, 1, {.first = {{0.5}}, .stop_at = 1}).values.size(), 1U);
  EXPECT_EQ(calls, 1);
}

TEST(LogScale, IsItsOwnInverseAtTheEndsAndRoundsToThreeDigits) {
  EXPECT_EQ(from_log_scale(0, 1'000'000, 100'000'000), 1'000'000);
  EXPECT_EQ(from_log_scale(1, 1'000'000, 100'000'000), 100'000'000);
  EXPECT_EQ(from_log_scale(to_log_scale(25'000'000, 1'000'000, 100'000'000), 1'000'000, 100'000'000),
            25'000'000);
  EXPECT_EQ(from_log_scale(0.777, 1, 1'000'000'000) % 10'000, 0);
  EXPECT_EQ(to_log_scale(5, 5, 5), 0);
}

}  // namespace
}  // namespace gradweave
