#include "schemes/merging.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace gradweave {
namespace {

// One float32 tensor per layer; a rate of 1 ns per byte.
CostModel model_of(const std::vector<Nanoseconds>& backward_in_forward_order,
                   const std::vector<std::int64_t>& numel, Nanoseconds startup) {
  Workload workload{.name = "w"};
  for (std::size_t l = 0; l < numel.size(); ++l) {
    const std::string name = "l" + std::to_string(l);
    workload.layers.push_back(
        {name, 5, backward_in_forward_order[l], std::nullopt, {{name + ".w", numel[l]}}});
  }
  return {workload, {.workers = 4, .links = {{"net", startup, {1, 3}}}}};
}

// The end of the last of `groups`, issued in order on the first link, from the start of backward.
Nanoseconds end_of(const CostModel& model, const std::vector<Message>& groups) {
  Nanoseconds end = 0;
  for (const Message& group : groups) {
    const Nanoseconds ready = model.index().backward_end[last_ready_layer(model, group.slices)];
    end = std::max(end, ready - model.index().forward_total) + model.all_reduce(0, group.slices);
  }
  return end;
}

std::vector<std::size_t> sizes(const std::vector<Message>& groups) {
  std::vector<std::size_t> sizes;
  for (const Message& group : groups) sizes.push_back(group.slices.size());
  return sizes;
}

// Every way of cutting the backward order into contiguous groups.
Nanoseconds best_of_all_cuts(const CostModel& model) {
  const std::vector<Slice> tensors = tensors_in_backward_order(model);
  Nanoseconds best = std::numeric_limits<Nanoseconds>::max();
  for (std::uint32_t cuts = 0; cuts < 1U << (tensors.size() - 1); ++cuts) {
    std::vector<Message> groups(1);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      groups.back().slices.push_back(tensors[i]);
      if (i + 1 < tensors.size() && (cuts >> i & 1)) groups.emplace_back();
    }
    best = std::min(best, end_of(model, groups));
  }
  return best;
}

TEST(Merging, ExactIsTheBestOfAllCutsAndGreedyNeverBeatsIt) {
  std::mt19937_64 random(7);
  int greedy_worse = 0;
  for (int round = 0; round < 600; ++round) {
    const std::size_t layers = 1 + random() % 9;
    std::vector<Nanoseconds> backward;
    std::vector<std::int64_t> numel;
    for (std::size_t l = 0; l < layers; ++l) {
      backward.push_back(static_cast<Nanoseconds>(random() % 400));
      numel.push_back(1 + static_cast<std::int64_t>(random() % (round % 2 == 0 ? 30 : 200)));
    }
    const CostModel model = model_of(backward, numel, static_cast<Nanoseconds>(random() % 300));
    const Nanoseconds best = best_of_all_cuts(model);
    ASSERT_EQ(end_of(model, merged_optimally(model)), best);
    ASSERT_EQ(sizes(merged_optimally(model, false)), sizes(merged_optimally(model))) << "bounds change it";
    const Nanoseconds greedy = end_of(model, merged_greedily(model, MergeRule::kStartup));
    ASSERT_GE(greedy, best);
    greedy_worse += greedy > best;
  }
  EXPECT_GT(greedy_worse, 0) << "the paper's rule would be optimal";
}

TEST(Merging, ThePapersRuleIsNotOptimal) {
  // In backward order ready at 0, 9000, 15000 ns, and 90000, 10000, 10000 ns beside a start-up of 10000.
  const CostModel model = model_of({6000, 9000, 0}, {2500, 2500, 22500}, 10000);
  EXPECT_EQ(merged_greedily(model, MergeRule::kStartup).size(), 1U);
  EXPECT_EQ(end_of(model, merged_greedily(model, MergeRule::kStartup)), 135000);
  EXPECT_EQ(merged_optimally(model).size(), 2U);
  EXPECT_EQ(end_of(model, merged_optimally(model)), 130000);
}

TEST(Merging, WithoutStartUpTheMergeRulesAgree) {
  const CostModel model = model_of({40, 10, 300, 20, 5}, {50, 20, 3, 100, 10}, 0);
  const auto greedy = merged_greedily(model, MergeRule::kStartup);
  const auto simultaneous = merged_greedily(model, MergeRule::kStart);
  ASSERT_EQ(greedy.size(), simultaneous.size());
  for (std::size_t i = 0; i < greedy.size(); ++i) EXPECT_EQ(greedy[i].slices, simultaneous[i].slices);
}

TEST(Merging, KeepsDtypesApart) {
  const Workload workload{
      .name = "w",
      .layers = {{"a", 1, 1, std::nullopt, {{"a.w", 10, DType::kFloat32}, {"a.b", 10, DType::kFloat16}}}}};
  const CostModel model(workload, {.workers = 2, .links = {{"net", 1'000'000, {1, 3}}}});
  EXPECT_EQ(merged_greedily(model, MergeRule::kStartup).size(), 2U);
  EXPECT_EQ(merged_optimally(model).size(), 2U);
}

}  // namespace
}  // namespace gradweave
