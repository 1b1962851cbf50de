#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/splitmix.h"
#include "gradweave/tune.h"

namespace gradweave {
namespace {

using Values = std::vector<double>;
constexpr double kNever = std::numeric_limits<double>::infinity();

TunedParameter sizes() { return {{1e6, 1e8}, true}; }

// Numbers that are about normal, mean 0 and deviation 1: sums of uniform ones.
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : state_(seed * 977) {}
  double uniform() { return static_cast<double>(splitmix64(state_ += kSplitmixStep) >> 11) * 0x1p-53; }
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

// Runs the tuner to its end; returns how many measurements it took.
int run(Tuner& tuner, const std::function<double(const Values&)>& measure) {
  int count = 0;
  for (; const auto place = tuner.next(); ++count) tuner.add(measure(tuner.trials()[*place].values));
  return count;
}

// The time of an iteration over the size of a buffer: start-ups below, no overlap above, the best at 7 MB.
double valley(const Values& values) { return 0.5 + 0.1 * std::pow(std::log10(values[0] / 7e6), 2); }

TEST(Tuner, BeginsWithTheStartAndEndsAfterItsTrials) {
  Tuner tuner({sizes()}, {25e6}, 5);
  EXPECT_EQ(tuner.next(), 0U);
  EXPECT_EQ(tuner.next(), 0U);
  EXPECT_EQ(tuner.trials()[0].values, Values{25e6});
  const int measurements = run(tuner, valley);
  EXPECT_EQ(tuner.trials().size(), 5U);
  EXPECT_EQ(measurements, 9);  // the start and the best twice more
  EXPECT_FALSE(tuner.next().has_value());
  EXPECT_EQ(tuner.trials()[1].values[0], 1e7);  // half of the logarithmic scale
}

TEST(Tuner, FindsTheMinimumOfASmoothFunction) {
  Tuner tuner({sizes()}, {25e6}, 10);
  run(tuner, valley);
  EXPECT_NEAR(valley(tuner.trials()[tuner.best()].values), 0.5, 0.001);
}

// Two sizes, as ByteScheduler's.
double bowl(const Values& values) {
  return 0.5 + 0.1 * std::pow(std::log10(values[0] / 4e6), 2) +
         0.1 * std::pow(std::log10(values[1] / 3e7), 2);
}

TEST(Tuner, FindsTheMinimumOfNoisyFunctionsMoreSurelyThanRandomSearch) {
  struct Case {
    std::function<double(const Values&)> function;
    std::vector<TunedParameter> parameters;
    int trials;
  };
  const auto two_valleys = [](const Values& values) {
    return std::min(valley(values), 0.47 + 0.9 * std::pow(std::log10(values[0] / 6e7), 2));
  };
  for (const auto& [function, parameters, trials] :
       {Case{valley, {sizes()}, 12}, Case{two_valleys, {sizes()}, 12}, Case{bowl, {sizes(), sizes()}, 16}}) {
    const Values start(parameters.size(), 1e6);
    double lowest = kNever, by_model = 0, at_random = 0;
    Noise grid(1);
    for (int i = 0; i < 20'000; ++i) {
      Values values;
      for (std::size_t d = 0; d < start.size(); ++d) values.push_back(1e6 * std::pow(100, grid.uniform()));
      lowest = std::min(lowest, function(values));
    }
    constexpr int kRuns = 40;
    for (int seed = 0; seed < kRuns; ++seed) {
      Noise noise(static_cast<std::uint64_t>(seed) + 2);
      const auto measured = [&](const Values& values) {
        return function(values) * (1 + 0.01 * noise.normal());
      };
      Tuner tuner(parameters, start, trials, static_cast<std::uint64_t>(seed));
      const int measurements = run(tuner, measured);
      by_model += function(tuner.trials()[tuner.best()].values) - lowest;
      double best = measured(start), of_best = function(start);
      for (int i = 1; i < measurements; ++i) {  // as many as the tuner had
        Values values;
        for (std::size_t d = 0; d < start.size(); ++d) values.push_back(1e6 * std::pow(100, noise.uniform()));
        if (const double seconds = measured(values); seconds < best) {
          best = seconds;
          of_best = function(values);
        }
      }
      at_random += of_best - lowest;
    }
    EXPECT_LT(by_model, 0.7 * at_random);
    EXPECT_LT(by_model / kRuns, 0.01);  // 2 % of the time
  }
}

TEST(Tuner, KeepsTheStartWhereNothingIsBetter) {
  Tuner tuner({sizes()}, {7e6}, 8);
  run(tuner, valley);
  EXPECT_EQ(tuner.best(), 0U);
}

TEST(Tuner, MeasuresALuckyWinnerAgain) {
  Tuner tuner({sizes()}, {25e6}, 4);
  const Values first = {1.0, 0.5, 1.2, 1.1};  // the second was lucky
  const Values again = {1.0, 1.6, 1.2, 1.1};
  std::vector<int> times(4);
  while (const auto place = tuner.next()) tuner.add(times[*place]++ == 0 ? first[*place] : again[*place]);
  EXPECT_EQ(times, (std::vector<int>{2, 2, 1, 1}));
  EXPECT_EQ(tuner.best(), 0U);
}

TEST(Tuner, AConstantFunctionKeepsTheStart) {
  Tuner tuner({sizes(), sizes()}, {25e6, 1e6}, 12);
  EXPECT_EQ(run(tuner, [](const Values&) { return 0.25; }), 12);
  EXPECT_EQ(tuner.best(), 0U);
}

TEST(Tuner, ARangeOfOnePointHasNothingToTry) {
  Tuner tuner({{{4096, 4096}, true}}, {4096}, 8);
  EXPECT_EQ(run(tuner, valley), 1);
}

TEST(Tuner, ASmallRangeOfIntegersIsTriedWholeAndNothingTwice) {
  Tuner tuner({{{1, 4, Scale::kLinear}, true}}, {2}, 20);
  EXPECT_EQ(run(tuner, [](const Values& values) { return std::abs(values[0] - 3); }), 8);
  EXPECT_EQ(tuner.trials().size(), 4U);
  EXPECT_EQ(tuner.trials()[tuner.best()].values, Values{3});
}

TEST(Tuner, AStartOfUnknownValuesOnlyCompetes) {
  Tuner tuner({sizes()}, {}, 6);
  run(tuner, [](const Values& values) { return values.empty() ? 0.1 : valley(values); });
  EXPECT_EQ(tuner.best(), 0U);
}

TEST(Tuner, WhatCannotRunIsNeverTheBest) {
  Tuner tuner({sizes()}, {25e6}, 10);
  run(tuner, [](const Values& values) { return values[0] < 2e7 ? kNever : valley(values); });
  EXPECT_GE(tuner.trials()[tuner.best()].values[0], 2e7);
}

TEST(Tuner, WhatIsAssumedCostsNoTrialAndIsNeverTheBest) {
  Tuner tuner({sizes()}, {25e6}, 3);
  tuner.next();
  tuner.add(0.5);
  for (int i = 0; i < 5; ++i) {
    tuner.next();
    tuner.assume(0.5);
  }
  int more = 0;
  while (tuner.next()) {
    tuner.add(0.6);
    ++more;
  }
  EXPECT_EQ(more, 2);
  EXPECT_EQ(tuner.best(), 0U);
}

TEST(Tuner, EndsWhereEverythingIsAssumed) {
  Tuner tuner({sizes()}, {25e6}, 3);
  tuner.next();
  tuner.add(0.5);
  int assumed = 0;
  for (; tuner.next(); ++assumed) tuner.assume(0.5);
  EXPECT_EQ(assumed, 20);
}

}  // namespace
}  // namespace gradweave
