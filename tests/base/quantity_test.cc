#include "base/quantity.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace gradweave {
namespace {

TEST(Quantity, PlainNumbersAreInTheMeasuresUnit) {
  EXPECT_EQ(quantity("26214400", Measure::kBytes), 26214400);
  EXPECT_EQ(quantity("1.5", Measure::kMicroseconds), 1.5);
  EXPECT_EQ(quantity("1e3", Measure::kGigabitsPerSecond), 1000);
}

TEST(Quantity, UnitsAreExact) {
  EXPECT_EQ(quantity("25MB", Measure::kBytes), 25e6);
  EXPECT_EQ(quantity("25 MiB", Measure::kBytes), 26214400);
  EXPECT_EQ(quantity("1.1MB", Measure::kBytes), 1100000);  // 1.1 * 1e6 is not
  EXPECT_EQ(quantity("1e3kB", Measure::kBytes), 1e6);
  EXPECT_EQ(quantity("100us", Measure::kMicroseconds), 100);
  EXPECT_EQ(quantity("1.5ms", Measure::kMicroseconds), 1500);
  EXPECT_EQ(quantity("2s", Measure::kMicroseconds), 2e6);
  EXPECT_EQ(quantity("250ns", Measure::kMicroseconds), 0.25);
  EXPECT_EQ(quantity("1.5min", Measure::kMicroseconds), 90e6);
  EXPECT_EQ(quantity("6h", Measure::kMicroseconds), 21600e6);
  EXPECT_EQ(quantity("30d", Measure::kMicroseconds), 2592000e6);
  EXPECT_EQ(quantity("10Gb/s", Measure::kGigabitsPerSecond), 10);
  EXPECT_EQ(quantity("400Mb/s", Measure::kGigabitsPerSecond), 0.4);
  EXPECT_EQ(quantity("1.25GB/s", Measure::kGigabitsPerSecond), 10);
}

TEST(Quantity, WhatIsNoneIsNothing) {
  for (const char* text :
       {"", "MB", "25 M", "25mb", "25MBs", "25  MB", "10us", "1e9999MB", "infMB", "1e99999kB"})
    EXPECT_EQ(quantity(text, Measure::kBytes), std::nullopt) << text;
  EXPECT_EQ(quantity("10Gb", Measure::kGigabitsPerSecond), std::nullopt);
}

TEST(Quantity, AnUnknownUnitIsToldTheNearest) {
  EXPECT_EQ(unit_remedy("25M", Measure::kBytes).substr(0, 21), "did you mean '25MB'? ");
  EXPECT_EQ(unit_remedy("1.5 gib", Measure::kBytes).substr(0, 24), "did you mean '1.5GiB'? U");
  EXPECT_EQ(unit_remedy("10Gbps", Measure::kGigabitsPerSecond).substr(0, 24), "did you mean '10Gb/s'? U");
  EXPECT_EQ(unit_remedy("3 apples", Measure::kMicroseconds), "use a unit of ns, us, ms, s, min, h, d");
  for (const char* text : {"", "25MB", "7", "all", "MB"})
    EXPECT_EQ(unit_remedy(text, Measure::kBytes), "") << text;
}

TEST(Quantity, LosesItsUnitOnly) {
  EXPECT_EQ(without_unit("25MB", Measure::kBytes), "25000000");
  EXPECT_EQ(without_unit("1.5B", Measure::kBytes), "1.5");
  EXPECT_EQ(without_unit("0.5us", Measure::kMicroseconds), "0.5");
  for (const char* text : {"", "1e3", "007", "-5", "all", "25mb", "nan"})
    EXPECT_EQ(without_unit(text, Measure::kBytes), text);
}

RC_GTEST_PROP(QuantityProperty, WholeSizesOfAnyUnitAreKept, ()) {
  const auto count = *rc::gen::inRange<std::int64_t>(0, 8'000'000);
  RC_ASSERT(without_unit(std::to_string(count) + "GB", Measure::kBytes) ==
            std::to_string(count * 1'000'000'000));
  RC_ASSERT(without_unit(std::to_string(count) + "GiB", Measure::kBytes) == std::to_string(count << 30));
}

}  // namespace
}  // namespace gradweave
