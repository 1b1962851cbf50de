#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "base/statistics.h"
#include "gradweave/observe.h"

namespace gradweave {
namespace {

// Quantiles of Student's t, two-sided (Abramowitz and Stegun, table 26.10).
TEST(StudentTail, Table) {
  EXPECT_NEAR(student_tail(12.706, 1), 0.05, 3e-5);
  EXPECT_NEAR(student_tail(4.303, 2), 0.05, 3e-5);
  EXPECT_NEAR(student_tail(3.182, 3), 0.05, 3e-5);
  EXPECT_NEAR(student_tail(2.776, 4), 0.05, 3e-5);
  EXPECT_NEAR(student_tail(2.228, 10), 0.05, 3e-5);
  EXPECT_NEAR(student_tail(5.959, 6), 0.001, 1e-6);
  EXPECT_NEAR(student_tail(5.041, 8), 0.001, 1e-6);
  EXPECT_DOUBLE_EQ(student_tail(0, 5), 1);
  EXPECT_DOUBLE_EQ(student_tail(std::numeric_limits<double>::infinity(), 5), 0);
}

double alarms(double chance, std::uint32_t seed, int samples) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0.3, 0.02);
  ChangeTest test(chance);
  int alarms = 0;
  for (int i = 0; i < samples; ++i) alarms += test.add(noise(random)) ? 1 : 0;
  return static_cast<double>(alarms) / samples;
}

TEST(ChangeTest, FalseAlarmsAreRarerThanStated) {
  EXPECT_LT(alarms(0.01, 1, 100'000), 0.01);
  EXPECT_LT(alarms(0.001, 2, 100'000), 0.001);
}

// How many measurements a shift goes unseen, after one that is in between.
int delay(double shift, std::uint32_t seed, int before, std::optional<double> mixed = {}) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, 0.02);
  ChangeTest test(1e-5);
  for (int i = 0; i < before; ++i) test.add(noise(random));
  if (mixed) test.add(*mixed);
  for (int i = 1; i < 100; ++i) {
    if (test.add(shift + noise(random))) return i;
  }
  return 100;
}

TEST(ChangeTest, SeesALinkOfHalfTheRateInTwoSamples) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    EXPECT_EQ(delay(std::log(2), seed, 12), 2);
    EXPECT_EQ(delay(-std::log(2), seed, 12), 2);
  }
}

TEST(ChangeTest, SeesItEarlyAndWhereASampleLiesAcrossTheChange) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    for (const int before : {3, 4, 6, 12, 40})
      for (const double part : {0.1, 0.3, 0.45})
        EXPECT_EQ(delay(std::log(4), seed, before, part * std::log(4)), 2);
  }
}

TEST(ChangeTest, SeesASmallShiftInMoreSamples) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) EXPECT_LE(delay(std::log(1.15), seed, 60), 8);
}

TEST(ChangeTest, OneOutlierIsNoChange) {
  ChangeTest test(1e-3);
  std::mt19937 random(3);
  std::normal_distribution<double> noise(0, 0.02);
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(test.add(i == 100 ? 5 : noise(random)));
}

TEST(ChangeTest, AfterAChangeOnlyWhatIsNewCounts) {
  ChangeTest test(1e-3);
  for (int i = 0; i < 20; ++i) test.add(i % 2 == 0 ? 0.01 : -0.01);
  EXPECT_NEAR(test.mean(), 0, 1e-9);
  EXPECT_FALSE(test.add(0.5));
  EXPECT_TRUE(test.add(0.52));
  EXPECT_EQ(test.size(), 2U);
  EXPECT_NEAR(test.mean(), 0.51, 1e-9);
}

TEST(ChangeTest, UncertaintyIsStudents) {
  ChangeTest test(0);
  EXPECT_TRUE(std::isinf(test.uncertainty()));
  for (const double value : {1.0, 2.0, 3.0}) test.add(value);
  EXPECT_NEAR(test.uncertainty(), 4.303 / std::sqrt(3), 1e-3);  // standard deviation 1
}

}  // namespace
}  // namespace gradweave
