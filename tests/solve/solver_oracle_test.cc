// Our exact solvers against mixed-integer models of the same problems, solved by CBC, beyond the size of
// brute force.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>

#include "solve/balance.h"
#include "solve/knapsack.h"
#include "testing/cbc.h"

namespace gradweave {
namespace {

std::string variable(std::size_t item, std::size_t knapsack) {
  return "x_" + std::to_string(item) + "_" + std::to_string(knapsack);
}

// maximise sum v_i x_ik; each item once; for every release r and knapsack k: what is ready at r or later fits
// [r, close).
std::string knapsack_program(std::span<const KnapsackItem> items, std::span<const Knapsack> knapsacks) {
  std::string program = "Maximize\n obj:";
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (std::size_t k = 0; k < knapsacks.size(); ++k)
      program += " + " + std::to_string(items[i].value) + " " + variable(i, k);
    program += "\n";
  }
  program += "Subject To\n";
  for (std::size_t i = 0; i < items.size(); ++i) {
    program += " once_" + std::to_string(i) + ":";
    for (std::size_t k = 0; k < knapsacks.size(); ++k) program += " + " + variable(i, k);
    program += " <= 1\n";
  }
  for (std::size_t k = 0; k < knapsacks.size(); ++k) {
    std::set<std::int64_t> releases;
    for (const KnapsackItem& item : items) releases.insert(std::max(item.ready, knapsacks[k].open));
    for (const std::int64_t release : releases) {
      program += " fits_" + std::to_string(k) + "_" + std::to_string(release) + ":";
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (std::max(items[i].ready, knapsacks[k].open) < release) continue;
        program += " + " + std::to_string(items[i].time[k]) + " " + variable(i, k);
      }
      program += " <= " + std::to_string(knapsacks[k].close - release) + "\n";
    }
  }
  program += "Binary\n";
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (std::size_t k = 0; k < knapsacks.size(); ++k) program += " " + variable(i, k);
  }
  return program + "\nEnd\n";
}

// minimise the fullest bin.
std::string balance_program(std::span<const std::int64_t> costs, std::size_t bins) {
  std::string program = "Minimize\n obj: largest\nSubject To\n";
  for (std::size_t i = 0; i < costs.size(); ++i) {
    program += " once_" + std::to_string(i) + ":";
    for (std::size_t b = 0; b < bins; ++b) program += " + " + variable(i, b);
    program += " = 1\n";
  }
  for (std::size_t b = 0; b < bins; ++b) {
    program += " bin_" + std::to_string(b) + ":";
    for (std::size_t i = 0; i < costs.size(); ++i)
      program += " + " + std::to_string(costs[i]) + " " + variable(i, b);
    program += " - largest <= 0\n";
  }
  program += "Binary\n";
  for (std::size_t i = 0; i < costs.size(); ++i) {
    for (std::size_t b = 0; b < bins; ++b) program += " " + variable(i, b);
  }
  return program + "\nEnd\n";
}

class SolverOracle : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override {
    if (!testing::cbc_available()) GTEST_SKIP() << "cbc is missing: install coinor-cbc for this check";
  }

  std::int64_t draw(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random_() % static_cast<unsigned>(most - least + 1));
  }

  std::mt19937 random_{GetParam()};
};

TEST_P(SolverOracle, Knapsacks) {
  const auto count = static_cast<std::size_t>(draw(8, 14));
  std::vector<std::vector<std::int64_t>> times;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t fast = draw(5, 60);
    times.push_back({fast * 165 / 100, fast});
  }
  std::ranges::sort(times, std::greater<>());
  std::vector<KnapsackItem> items;
  for (const auto& time : times) items.push_back({time[1], GetParam() % 2 == 0 ? 0 : draw(0, 90), time});
  const std::vector<Knapsack> knapsacks = {{draw(0, 30), 130}, {draw(0, 30), 130}};
  const ExactFill exact = fill_exact(items, knapsacks, 10'000'000);
  ASSERT_TRUE(exact.proven);
  EXPECT_EQ(value_of(items, exact.placement),
            std::llround(*testing::solve_with_cbc(knapsack_program(items, knapsacks))));
}

TEST_P(SolverOracle, Balance) {
  std::vector<std::int64_t> costs;
  for (std::int64_t i = draw(8, 11); i > 0; --i) costs.push_back(draw(1, 100));
  const auto bins = static_cast<std::size_t>(draw(2, 4));
  const Balance result = balance(costs, bins, 10'000'000);
  ASSERT_TRUE(result.proven);
  EXPECT_EQ(result.largest, std::llround(*testing::solve_with_cbc(balance_program(costs, bins))));
}

INSTANTIATE_TEST_SUITE_P(Seeds, SolverOracle, ::testing::Range(1U, 13U));

}  // namespace
}  // namespace gradweave
