// DeFT on the paper's published input (Table II), and the rules that it must keep there.
#include "schemes/deft.h"

#include <gtest/gtest.h>

#include <array>

#include "gradweave/error.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"

namespace gradweave {
namespace {

// Table II: VGG-19 in 6 buckets, microseconds; elements from COVAP's Table V.
Workload vgg19() {
  constexpr std::array<Nanoseconds, 6> kForward = {1238, 28799, 4801, 1899, 326, 103};
  constexpr std::array<Nanoseconds, 6> kBackward = {72496, 12786, 4872, 2319, 484, 162};
  constexpr std::array<Nanoseconds, 6> kCommunication = {1968, 11262, 15447, 178643, 31754, 8651};
  constexpr std::array<std::int64_t, 6> kElements = {555072, 7669760, 7079424, 107480576, 16781312, 4101096};
  Workload workload{.name = "vgg19"};
  for (std::size_t i = 0; i < 6; ++i) {
    const std::string name = "bucket" + std::to_string(i + 1);
    workload.layers.push_back({.name = name,
                               .forward_ns = kForward[i] * 1000,
                               .backward_ns = kBackward[i] * 1000,
                               .communication_ns = kCommunication[i] * 1000,
                               .tensors = {{.name = name + ".weight", .numel = kElements[i]}}});
  }
  return workload;
}

// One link of relative time 1, or two with mu = 1.65.
Cluster links(std::size_t count) {
  Cluster cluster{.workers = 16};
  cluster.links.push_back({.name = "fast", .us_per_byte = {1, 4}});
  if (count == 2)
    cluster.links.push_back({.name = "slow", .us_per_byte = {165, 6}, .relative_time = {165, 2}});
  return cluster;
}

Plan plan_of(const PlanResult& result) {
  if (const Starves* starves = std::get_if<Starves>(&result)) ADD_FAILURE() << starves->reason;
  return std::get<Plan>(result);
}

TEST(DeftTableTwo, PiecesAreNoLongerThanAsked) {
  const CostModel model(vgg19(), links(1));
  const auto count = [&](Nanoseconds limit) {
    const std::optional<DeftProblem> problem = deft_problem(model, 1, limit);
    EXPECT_LE(problem->pieces.front().time.back(), limit);
    return problem->pieces.size();
  };
  EXPECT_EQ(count(22'525'000), 14U);
  EXPECT_EQ(count(11'262'000), 24U);
}

TEST(DeftTableTwo, DefaultLimitIsForwardTimeOnTheSlowestLink) {
  const CostModel model(vgg19(), links(2));
  const std::optional<DeftProblem> problem = deft_problem(model, 2, std::nullopt);
  EXPECT_EQ(problem->forward, 37'166'000);
  EXPECT_EQ(problem->pieces.size(), 14U);  // 37166 / 1.65 = 22525
  for (const DeftPiece& piece : problem->pieces) EXPECT_LE(piece.time.front(), problem->forward);
}

class DeftTableTwoRates : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(DeftTableTwoRates, UpdatesPerIterationWithNothingExposed) {
  const auto [limit, solver] = GetParam();
  const std::map<std::string, std::string> options = {{"max_block_us", limit}, {"solver", solver}};
  for (const auto& [count, updates] : {std::pair(1U, 0.5), std::pair(2U, 0.8)}) {
    const Cluster cluster = links(count);
    const Plan plan = plan_of(make_plan("deft", vgg19(), cluster, options));
    const Validation validation = validate(plan, vgg19(), &cluster);
    EXPECT_TRUE(validation.valid());
    EXPECT_LE(validation.facts.generations_alive, 2);
    const SimulationResult result = simulate(plan, vgg19(), cluster);
    EXPECT_EQ(result.iteration_ns(), 130'285'000);
    EXPECT_DOUBLE_EQ(result.updates_per_iteration, updates);
    EXPECT_LE(result.staleness_max, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeftTableTwoRates,
                         testing::Combine(testing::Values("22525", "11262"),
                                          testing::Values("greedy", "exact", "search")));

TEST(Deft, UnpartitionedStarvesAndSaysWhy) {
  const PlanResult result = make_plan("deft", vgg19(), links(1), {{"max_block_us", "200000"}});
  const Starves* starves = std::get_if<Starves>(&result);
  ASSERT_NE(starves, nullptr);
  EXPECT_NE(starves->reason.find("bucket4"), std::string::npos) << starves->reason;
  EXPECT_NE(starves->reason.find("178643 us"), std::string::npos) << starves->reason;
}

TEST(Deft, SearchCarriesWhatNoKnapsackHolds) {
  const Plan plan =
      plan_of(make_plan("deft", vgg19(), links(1), {{"max_block_us", "200000"}, {"solver", "search"}}));
  EXPECT_GT(simulate(plan, vgg19(), links(1)).updates_per_iteration, 0);
}

TEST(Deft, NoDelayWhereNoneGains) {
  Workload workload = vgg19();
  for (Layer& layer : workload.layers) *layer.communication_ns /= 10;
  workload.layers[0].communication_ns = 0;
  const Plan plan = plan_of(make_plan("deft", workload, links(1)));
  EXPECT_TRUE(plan.prologue.empty());
  ASSERT_EQ(plan.period.size(), 1U);
  for (const Apply& apply : plan.period[0].applies) EXPECT_EQ(apply.at.kind, PointKind::kForwardStart);
}

TEST(Deft, LocalCorrectionStepsEveryIteration) {
  const Plan plan = plan_of(make_plan("deft", vgg19(), links(1), {{"correction", "local"}}));
  EXPECT_EQ(plan.merge, Merge::kSum);
  EXPECT_DOUBLE_EQ(simulate(plan, vgg19(), links(1)).updates_per_iteration, 1.0);
  for (const Iteration& iteration : plan.period) {
    EXPECT_EQ(iteration.applies.back().source, Source::kLocalGradient);
    if (iteration.applies.size() == 2) {
      EXPECT_EQ(iteration.applies.front().correction, Correction::kLocal);
    }
  }
  EXPECT_THROW(make_plan("deft", vgg19(), links(1), {{"correction", "local"}, {"merge", "mean"}}),
               InvalidInput);
}

TEST(Deft, SameInputSamePlan) {
  for (const char* solver : {"greedy", "exact", "search"}) {
    EXPECT_EQ(make_plan("deft", vgg19(), links(2), {{"solver", solver}}),
              make_plan("deft", vgg19(), links(2), {{"solver", solver}}));
  }
}

}  // namespace
}  // namespace gradweave
