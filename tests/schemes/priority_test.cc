#include "schemes/priority.h"

#include <gtest/gtest.h>

#include "gradweave/error.h"

namespace gradweave {
namespace {

CostModel two_tensors(std::vector<Link> links) {
  const Workload workload{.name = "w",
                          .layers = {{"first", 10, 100, std::nullopt, {{"first.w", 100}}},
                                     {"second", 10, 50, std::nullopt, {{"second.w", 130}}}}};
  return {workload, {.workers = 4, .links = std::move(links)}};
}

TEST(Partition, FixedLeavesTheRestToTheLastSlice) {
  const CostModel model = two_tensors({{"net", 0, {1, 3}}});
  EXPECT_EQ(
      priority_slices(model, 160, Partition::kFixed),
      (std::vector<Slice>{
          {0, 0, 40}, {0, 40, 80}, {0, 80, 100}, {1, 0, 40}, {1, 40, 80}, {1, 80, 120}, {1, 120, 130}}));
}

TEST(Partition, EvenDiffersByOneElementAtMost) {
  const CostModel model = two_tensors({{"net", 0, {1, 3}}});
  EXPECT_EQ(priority_slices(model, 160, Partition::kEven),
            (std::vector<Slice>{
                {0, 0, 33}, {0, 33, 66}, {0, 66, 100}, {1, 0, 32}, {1, 32, 65}, {1, 65, 97}, {1, 97, 130}}));
}

TEST(Partition, SmallerThanAnElementIsOneElement) {
  EXPECT_EQ(priority_slices(two_tensors({{"net", 0, {1, 3}}}), 1, Partition::kEven).size(), 230U);
}

TEST(Partition, RefusesTooManySlices) {
  const Workload big{.name = "w", .layers = {{"a", 1, 1, std::nullopt, {{"a.w", 10'000'000}}}}};
  EXPECT_THROW(
      priority_slices(CostModel(big, {.workers = 2, .links = {{"net", 0, {1, 3}}}}), 4, Partition::kFixed),
      InvalidInput);
}

TEST(Partition, AnyCreditFitsASharedLink) {
  EXPECT_EQ(slices_in_flight(100, 1), 1);
  EXPECT_EQ(slices_in_flight(100, 100), 1);
  EXPECT_EQ(slices_in_flight(100, 101), 2);
  const Workload workload{.name = "w", .layers = {{"a", 10, 100, std::nullopt, {{"a.w", 1000}}}}};
  const Cluster shared{.workers = 2, .links = {{"net", 10, {1, 3}, 0}}};
  const std::map<std::string, std::string> most = {{"partition_bytes", "100"},
                                                   {"credit_bytes", "9007199254740992"}};
  for (const char* scheme : {"p3", "bytescheduler"})
    EXPECT_TRUE(std::holds_alternative<Plan>(make_plan(scheme, workload, shared, most))) << scheme;
}

TEST(Partition, P3CutsFixedSlicesAndByteSchedulerEvenParts) {
  const CostModel model = two_tensors({{"net", 0, {1, 3}}});
  const Workload workload{.name = "w", .layers = {{"a", 10, 100, std::nullopt, {{"a.w", 100}}}}};
  const auto ends = [&](std::string_view scheme) {
    const Plan plan = std::get<Plan>(
        make_plan(scheme, workload, model.cluster(), {{"partition_bytes", "160"}, {"credit_bytes", "1"}}));
    std::vector<std::int64_t> ends;
    for (const Block& block : plan.blocks) ends.push_back(block.end);
    return ends;
  };
  EXPECT_EQ(ends("p3"), (std::vector<std::int64_t>{40, 80, 100}));
  EXPECT_EQ(ends("bytescheduler"), (std::vector<std::int64_t>{33, 66, 100}));
}

std::vector<Slice> order_of(const std::vector<ScheduledOp>& ops) {
  std::vector<Slice> slices;
  for (const ScheduledOp& op : ops) slices.push_back(op.slices[0]);
  return slices;
}

// second's gradient is ready at 50 ns, first's at 150; a slice of 40 elements takes 160 ns on the link.
TEST(IssueByPriority, AnEarlyLayerOvertakesBetweenSlices) {
  const CostModel model = two_tensors({{"net", 0, {1, 3}}});
  const auto slices = priority_slices(model, 160, Partition::kFixed);
  EXPECT_EQ(
      order_of(issue_by_priority(model, slices, 1)),
      (std::vector<Slice>{
          {1, 0, 40}, {0, 0, 40}, {0, 40, 80}, {0, 80, 100}, {1, 40, 80}, {1, 80, 120}, {1, 120, 130}}));
}

TEST(IssueByPriority, CreditKeepsSlicesFromBeingOvertaken) {
  const CostModel model = two_tensors({{"net", 0, {1, 3}}});
  const auto slices = priority_slices(model, 160, Partition::kFixed);
  EXPECT_EQ(
      order_of(issue_by_priority(model, slices, 320)),
      (std::vector<Slice>{
          {1, 0, 40}, {1, 40, 80}, {0, 0, 40}, {0, 40, 80}, {0, 80, 100}, {1, 80, 120}, {1, 120, 130}}));
}

TEST(IssueByPriority, ASliceWaitsForTheLinkWhereItEndsFirst) {
  // On the slow link a slice of 160 bytes takes 1600 ns: longer than all the others on the fast one.
  const CostModel model = two_tensors({{"fast", 0, {1, 3}}, {"slow", 0, {1, 2}}});
  for (const ScheduledOp& op : issue_by_priority(model, priority_slices(model, 160, Partition::kFixed), 1)) {
    EXPECT_EQ(op.link, 0U);
  }
}

}  // namespace
}  // namespace gradweave
