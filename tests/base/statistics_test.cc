#include "base/statistics.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace gradweave {
namespace {

TEST(Statistics, MedianIsTheMiddleOrTheMeanOfTwo) {
  EXPECT_EQ(median_of<std::int64_t>({7}), 7);
  EXPECT_EQ(median_of<std::int64_t>({9, 1, 5}), 5);
  EXPECT_EQ(median_of<std::int64_t>({9, 1, 5, 6}), 5);  // of 5 and 6, rounded towards the smaller
  EXPECT_EQ(median_of<double>({9, 1, 5, 6}), 5.5);
}

TEST(Statistics, MedianIsThatOfTheSortedValues) {
  std::mt19937 random(1);
  for (std::size_t size = 1; size < 40; ++size) {
    std::vector<double> values(size);
    for (double& value : values) value = std::uniform_int_distribution(0, 20)(random);
    std::vector<double> sorted = values;
    std::ranges::sort(sorted);
    EXPECT_EQ(median_of(values), (sorted[(size - 1) / 2] + sorted[size / 2]) / 2);
  }
}

TEST(Statistics, PartsAddUpToTheMedianOfWhatTheyAddUpTo) {
  // One part in turn is disturbed: in no part's median, in every sum.
  const std::vector<double> parts = typical_row({{20, 20, 30}, {10, 30, 30}, {10, 20, 40}});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_DOUBLE_EQ(parts[0], 10 * 70 / 60.0);
  EXPECT_DOUBLE_EQ(parts[1], 20 * 70 / 60.0);
  EXPECT_DOUBLE_EQ(parts[2], 30 * 70 / 60.0);
  // An iteration that is disturbed as a whole counts as little as in a median.
  EXPECT_EQ(typical_row({{1, 2}, {100, 200}, {1, 2}}), (std::vector<double>{1, 2}));
  EXPECT_EQ(typical_row({{0, 0}}), (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace gradweave
