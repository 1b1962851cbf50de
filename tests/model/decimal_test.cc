#include "gradweave/decimal.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "gradweave/error.h"

namespace gradweave {
namespace {

TEST(Decimal, ReadsTheShortestDecimal) {
  EXPECT_EQ(decimal_from_double(0.0008, "rate"), (Decimal{8, 4}));
  EXPECT_EQ(decimal_from_double(1.65, "rate"), (Decimal{165, 2}));
  EXPECT_EQ(decimal_from_double(1200, "rate"), (Decimal{1200, 0}));
  EXPECT_EQ(decimal_from_double(0, "rate"), (Decimal{0, 0}));
  EXPECT_EQ(decimal_from_double(2.5e-10, "rate"), (Decimal{25, 11}));
}

TEST(Decimal, RefusesWhatItCannotKeep) {
  EXPECT_THROW(decimal_from_double(-1, "rate"), InvalidInput);
  EXPECT_THROW(decimal_from_double(std::nan(""), "rate"), InvalidInput);
  EXPECT_THROW(decimal_from_double(std::numeric_limits<double>::infinity(), "rate"), InvalidInput);
  EXPECT_THROW(decimal_from_double(1e300, "rate"), InvalidInput);
  EXPECT_THROW(decimal_from_double(1e-300, "rate"), InvalidInput);
}

TEST(Decimal, MultipliesExactlyAndRoundsUp) {
  EXPECT_EQ(multiply_ceil(0, {8, 1}), 0);
  EXPECT_EQ(multiply_ceil(10, {8, 1}), 8);
  EXPECT_EQ(multiply_ceil(11, {8, 1}), 9);
  EXPECT_EQ(multiply_ceil(1968000, {165, 2}), 3247200);
  EXPECT_EQ(multiply_ceil(1, {1, 40}), 1);
  EXPECT_THROW(multiply_ceil(std::int64_t{1} << 53, {1'000'000, 0}), InvalidInput);
}

TEST(Decimal, ScalesByARatio) {
  EXPECT_EQ(multiply_ratio({8, 4}, 3, 4), (Decimal{6, 4}));
  EXPECT_EQ(multiply_ratio({1, 0}, 1, 3), (Decimal{333333333333333, 15}));
  EXPECT_EQ(multiply_ratio({2, 0}, 1, 3), (Decimal{666666666666667, 15}));
  EXPECT_EQ(multiply_ratio({0, 0}, 5, 3), (Decimal{0, 0}));
}

RC_GTEST_PROP(DecimalProperty, ReadsBack, ()) {
  const auto mantissa = *rc::gen::inRange<std::int64_t>(0, 1'000'000'000'000'000);
  const auto scale = *rc::gen::inRange(0, 20);
  const double value = static_cast<double>(mantissa) / std::pow(10.0, scale);
  RC_ASSERT(to_double(decimal_from_double(value, "value")) == value);
}

RC_GTEST_PROP(DecimalProperty, SharesAddUp, ()) {
  const auto total = *rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 53);
  const auto whole = *rc::gen::inRange<std::int64_t>(1, std::int64_t{1} << 40);
  const auto cut = *rc::gen::inRange<std::int64_t>(0, whole + 1);
  RC_ASSERT(floor_share(total, whole, whole) == total);
  const std::int64_t first = floor_share(total, cut, whole);
  RC_ASSERT(first >= 0 && first <= total);
}

}  // namespace
}  // namespace gradweave
