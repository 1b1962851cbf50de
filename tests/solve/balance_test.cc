#include "solve/balance.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace gradweave {
namespace {

std::int64_t fullest(std::span<const std::int64_t> costs, std::span<const std::int32_t> bin,
                     std::size_t bins) {
  std::vector<std::int64_t> sums(bins, 0);
  for (std::size_t i = 0; i < costs.size(); ++i) sums[static_cast<std::size_t>(bin[i])] += costs[i];
  return std::ranges::max(sums);
}

std::int64_t best_of_all(std::span<const std::int64_t> costs, std::size_t bins) {
  std::vector<std::int32_t> bin(costs.size(), 0);
  std::int64_t best = fullest(costs, bin, bins);
  for (;;) {
    std::size_t i = 0;
    while (i < bin.size() && ++bin[i] == static_cast<std::int32_t>(bins)) bin[i++] = 0;
    if (i == bin.size()) return best;
    best = std::min(best, fullest(costs, bin, bins));
  }
}

RC_GTEST_PROP(Balance, IsTheBestOfAllAssignments, ()) {
  const auto costs = *rc::gen::resize(
      8, rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 50)));
  const auto bins = *rc::gen::inRange<std::size_t>(1, 5);
  const Balance result = balance(costs, bins, 1'000'000);
  RC_ASSERT(result.proven);
  RC_ASSERT(result.largest == fullest(costs, result.bin, bins));
  RC_ASSERT(result.largest == best_of_all(costs, bins));
  for (std::size_t b = 0; b < bins && costs.size() >= bins; ++b) {
    RC_ASSERT(std::ranges::find(result.bin, static_cast<std::int32_t>(b)) != result.bin.end());
  }
}

TEST(Balance, NodeLimitKeepsLongestFirst) {
  std::vector<std::int64_t> costs;
  for (std::int64_t i = 0; i < 60; ++i) costs.push_back(1000 + 37 * i % 501);
  const Balance limited = balance(costs, 7, 10);
  EXPECT_FALSE(limited.proven);
  EXPECT_EQ(limited.largest, fullest(costs, limited.bin, 7));
}

}  // namespace
}  // namespace gradweave
