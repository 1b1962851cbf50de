// The choice of links: by hand, and beside all assignments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "schemes/schedule.h"

namespace gradweave {
namespace {

using ::testing::ElementsAre;

// A layer of one tensor for each number of bytes, in backward order, all ready at once.
Workload ready_at_once(const std::vector<std::int64_t>& bytes) {
  Workload workload{.name = "w"};
  for (std::size_t l = bytes.size(); l-- > 0;) {
    const std::string name = "l" + std::to_string(l);
    workload.layers.push_back({name, 0, 0, std::nullopt, {{name + ".w", bytes[l], DType::kInt8}}});
  }
  return workload;
}

Cluster two_links(std::int64_t second_is_slower = 1) {  // the first takes 1 ns a byte
  return {.workers = 2, .links = {{"a", 0, {1, 3}}, {"b", 0, {second_is_slower, 3}}}};
}

std::vector<ScheduledOp> one_op_each(const CostModel& model) {
  std::vector<Message> messages;
  for (const Slice& slice : tensors_in_backward_order(model)) messages.push_back({{slice}});
  return scheduled_when_ready(model, messages);
}

std::vector<std::size_t> links_of(const std::vector<ScheduledOp>& ops) {
  std::vector<std::size_t> links;
  for (const ScheduledOp& op : ops) links.push_back(op.link);
  return links;
}

TEST(Links, GreedyTakesTheLinkWhereAnOpEndsFirst) {
  const CostModel model(ready_at_once({3, 3, 3, 3}), two_links(2));
  std::vector<ScheduledOp> ops = one_op_each(model);
  assign_links_greedily(model, ops);
  EXPECT_THAT(links_of(ops), ElementsAre(0, 0, 1, 0));  // ends 3, 6 (a tie: the first), 6, 9
}

TEST(Links, SearchMovesWhatGreedyPutsWrong) {
  const CostModel model(ready_at_once({1, 1, 2}), two_links());
  std::vector<ScheduledOp> ops = one_op_each(model);
  assign_links_greedily(model, ops);
  EXPECT_EQ(iteration_time(model, ops), 3);
  assign_links(model, ops);
  EXPECT_EQ(iteration_time(model, ops), 2);
}

TEST(Links, AnAllGatherStaysWithItsReduceScatter) {
  const CostModel model(ready_at_once({4, 4, 4}), two_links());
  std::vector<ScheduledOp> ops = one_op_each(model);
  for (std::size_t i = 0; i < 3; ++i) {
    ops[i].collective = Collective::kReduceScatter;
    ops[i].needed_by = kNobody;
    ops.push_back({.slices = ops[i].slices, .collective = Collective::kAllGather, .after = i});
  }
  assign_links(model, ops);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(ops[i + 3].link, ops[i].link);
  EXPECT_EQ(iteration_time(model, ops), 8);  // two pairs on one link
}

TEST(Links, SearchIsMostOftenTheBestOfAllAssignments) {
  std::mt19937_64 random(2);
  int rounds = 0, greedy_best = 0, search_best = 0;
  for (; rounds < 300; ++rounds) {
    std::vector<std::int64_t> bytes;
    for (std::size_t i = 0; i < 2 + random() % 6; ++i)
      bytes.push_back(1 + static_cast<std::int64_t>(random() % 100));
    Workload workload = ready_at_once(bytes);
    for (Layer& layer : workload.layers) layer.backward_ns = static_cast<Nanoseconds>(random() % 50);
    const CostModel model(workload, two_links(1 + static_cast<std::int64_t>(random() % 3)));
    std::vector<ScheduledOp> ops = one_op_each(model);
    Nanoseconds best = std::numeric_limits<Nanoseconds>::max();
    for (std::uint32_t assignment = 0; assignment < 1U << ops.size(); ++assignment) {
      for (std::size_t i = 0; i < ops.size(); ++i) ops[i].link = assignment >> i & 1;
      best = std::min(best, iteration_time(model, ops));
    }
    assign_links_greedily(model, ops);
    const Nanoseconds greedy = iteration_time(model, ops);
    assign_links(model, ops);
    const Nanoseconds searched = iteration_time(model, ops);
    ASSERT_LE(best, searched);
    ASSERT_LE(searched, greedy);
    greedy_best += greedy == best;
    search_best += searched == best;
  }
  EXPECT_LT(greedy_best, rounds * 3 / 4);
  EXPECT_GT(search_best, rounds * 9 / 10) << greedy_best;
}

}  // namespace
}  // namespace gradweave
