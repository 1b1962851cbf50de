#include "solve/knapsack.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace gradweave {
namespace {

// An instance that owns its items' times.
struct Instance {
  std::vector<std::vector<std::int64_t>> times;
  std::vector<KnapsackItem> items;
  std::vector<Knapsack> knapsacks;
};

// Whether the set fits by the definition: some order of service ends by `close`.
bool fits_in_some_order(const Instance& instance, std::size_t knapsack, std::vector<std::size_t> set) {
  std::ranges::sort(set);
  do {
    std::int64_t now = instance.knapsacks[knapsack].open;
    for (const std::size_t i : set)
      now = std::max(now, instance.items[i].ready) + instance.times[i][knapsack];
    if (now <= instance.knapsacks[knapsack].close) return true;
  } while (std::ranges::next_permutation(set).found);
  return false;
}

bool fits(const Instance& instance, const Placement& placement) {
  for (std::size_t k = 0; k < instance.knapsacks.size(); ++k) {
    std::vector<std::size_t> set;
    for (std::size_t i = 0; i < placement.size(); ++i) {
      if (placement[i] == static_cast<std::int32_t>(k)) set.push_back(i);
    }
    if (!set.empty() && !fits_in_some_order(instance, k, set)) return false;
  }
  return true;
}

// Every placement of every item.
std::int64_t best_value_by_brute_force(const Instance& instance) {
  const auto choices = static_cast<std::int32_t>(instance.knapsacks.size());
  Placement placement(instance.items.size(), kLeftOut);
  std::int64_t best = 0;
  for (;;) {
    const std::int64_t value = value_of(instance.items, placement);
    if (value > best && fits(instance, placement)) best = value;
    std::size_t i = 0;
    while (i < placement.size() && ++placement[i] == choices) placement[i++] = kLeftOut;
    if (i == placement.size()) return best;
  }
}

Instance random_instance(bool released) {
  Instance instance;
  const auto n = *rc::gen::inRange<std::size_t>(1, 7);
  const auto knapsacks = *rc::gen::inRange<std::size_t>(1, 3);
  for (std::size_t k = 0; k < knapsacks; ++k) {
    const auto open = *rc::gen::inRange<std::int64_t>(0, 6);
    instance.knapsacks.push_back({open, open + *rc::gen::inRange<std::int64_t>(0, 25)});
  }
  for (std::size_t i = 0; i < n; ++i)
    instance.times.push_back(
        *rc::gen::container<std::vector<std::int64_t>>(knapsacks, rc::gen::inRange<std::int64_t>(0, 15)));
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t ready = released ? *rc::gen::inRange<std::int64_t>(0, 20) : 0;
    instance.items.push_back({*rc::gen::inRange<std::int64_t>(0, 12), ready, instance.times[i]});
  }
  std::ranges::stable_sort(instance.items, std::greater<>(), &KnapsackItem::value);
  std::vector<std::vector<std::int64_t>> sorted;
  for (const KnapsackItem& item : instance.items) sorted.emplace_back(item.time.begin(), item.time.end());
  instance.times = std::move(sorted);
  for (std::size_t i = 0; i < n; ++i) instance.items[i].time = instance.times[i];
  return instance;
}

RC_GTEST_PROP(Knapsack, ExactIsTheBestOfAllPlacements, ()) {
  const Instance instance = random_instance(*rc::gen::arbitrary<bool>());
  const ExactFill exact = fill_exact(instance.items, instance.knapsacks, 1'000'000);
  RC_ASSERT(exact.proven);
  RC_ASSERT(fits(instance, exact.placement));
  RC_ASSERT(value_of(instance.items, exact.placement) == best_value_by_brute_force(instance));
}

RC_GTEST_PROP(Knapsack, GreedyFitsAndLeavesNothingThatStillFits, ()) {
  const Instance instance = random_instance(*rc::gen::arbitrary<bool>());
  Placement placement = fill_greedy(instance.items, instance.knapsacks);
  RC_ASSERT(fits(instance, placement));
  for (std::size_t i = 0; i < placement.size(); ++i) {
    if (placement[i] != kLeftOut) continue;
    for (std::size_t k = 0; k < instance.knapsacks.size(); ++k) {
      placement[i] = static_cast<std::int32_t>(k);
      RC_ASSERT(!fits(instance, placement));
      placement[i] = kLeftOut;
    }
  }
}

TEST(Knapsack, ExactBeatsGreedyWhereLongestFirstWastes) {
  const std::vector<std::vector<std::int64_t>> times = {{6}, {5}, {5}};
  const std::vector<KnapsackItem> items = {{6, 0, times[0]}, {5, 0, times[1]}, {5, 0, times[2]}};
  const std::vector<Knapsack> knapsack = {{0, 10}};
  EXPECT_EQ(value_of(items, fill_greedy(items, knapsack)), 6);
  EXPECT_EQ(value_of(items, fill_exact(items, knapsack, 1000).placement), 10);
}

TEST(Knapsack, EveryReleaseCountsNotTheFirstAlone) {
  // 4 + 4 fit into [0, 8], but the second exists only at 5: DeFT's Algorithm 1 as printed would take both.
  const std::vector<std::vector<std::int64_t>> times = {{4}, {4}};
  const std::vector<KnapsackItem> items = {{4, 0, times[0]}, {4, 5, times[1]}};
  const std::vector<Knapsack> knapsack = {{0, 8}};
  EXPECT_EQ(value_of(items, fill_exact(items, knapsack, 1000).placement), 4);
}

TEST(Knapsack, NodeLimitKeepsTheBestFound) {
  std::vector<std::vector<std::int64_t>> times;
  for (std::int64_t i = 0; i < 40; ++i) times.push_back({1000 + 7 * i});
  std::vector<KnapsackItem> items;
  for (const auto& time : times) items.push_back({time[0], 0, time});
  const std::vector<Knapsack> knapsack = {{0, 20'011}};
  const ExactFill fill = fill_exact(items, knapsack, 50);
  EXPECT_FALSE(fill.proven);
  EXPECT_GE(value_of(items, fill.placement), value_of(items, fill_greedy(items, knapsack)));
}

}  // namespace
}  // namespace gradweave
