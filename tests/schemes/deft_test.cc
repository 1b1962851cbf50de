// DeFT on the paper's published input (Table II), and the rules that it must keep there.
#include "schemes/deft/deft.h"

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
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&result)) ADD_FAILURE() << infeasible->reason;
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

TEST(DeftTableTwo, LinksCarryWhatTheirRatesAllow) {
  const auto updates = [](std::size_t count) {
    const CostModel model(vgg19(), links(count));
    return 1 / deft_problem(model, count, std::nullopt)->least_iterations();
  };
  EXPECT_NEAR(updates(1), 130285.0 / 247725, 1e-4);
  EXPECT_NEAR(updates(2), 130285.0 / 247725 * (1 + 1 / 1.65), 1e-4);  // 0.8446
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

// One link, no start-ups; {time, ready} of each piece.
DeftProblem problem_of(Nanoseconds forward, Nanoseconds iteration,
                       const std::vector<std::pair<Nanoseconds, Nanoseconds>>& pieces) {
  DeftProblem problem{.forward = forward, .iteration = iteration, .links = {0}};
  for (const auto& [time, ready] : pieces)
    problem.pieces.push_back({.message = {}, .ready = ready, .time = {time}});
  return problem;
}

// piece@start{first..last} of each op, then =>{first..last} of what is applied.
std::string text_of(const DeftIteration& iteration) {
  const auto generation = [](const Generation& g) {
    return "{" + std::to_string(g.first) + ".." + std::to_string(g.last) + "} ";
  };
  std::string text;
  for (const DeftOp& op : iteration.ops)
    text += std::to_string(op.piece) + "@" + std::to_string(op.start) + generation(op.generation);
  if (iteration.applied) text += "=>" + generation(*iteration.applied);
  return text;
}

std::vector<std::string> text_of(const std::vector<DeftIteration>& iterations) {
  std::vector<std::string> texts;
  for (const DeftIteration& iteration : iterations) texts.push_back(text_of(iteration));
  return texts;
}

// Forward [0, 3], backward [3, 10]; pieces of 6 and 3 are ready at 6, one of 2 at 8. Worked by hand.
TEST(DeftKnapsacks, GoThroughEveryCaseOfAlgorithmTwo) {
  const DeftSchedule schedule =
      deft_knapsacks(problem_of(3, 10, {{6, 6}, {3, 6}, {2, 8}}), DeftFill::kGreedy);
  EXPECT_EQ(text_of(schedule.prologue),
            (std::vector<std::string>{"1@6{0..0} ",                                        // 4, no update
                                      "2@0{-1..-1} 0@2{-1..-1} 2@8{0..0} =>{-1..-1} "}));  // 1, 3
  EXPECT_EQ(
      text_of(schedule.period),
      (std::vector<std::string>{"1@0{-1..-1} 0@3{-1..-1} =>{-1..-1} ",  // 1, 3: nothing new fits into [9, 10]
                                "1@0{-1..-1} 0@3{-1..-1} ",             // 1, 2: the new ones wait
                                "2@0{-2..-2} 1@6{-1..0} =>{-2..-2} ",   // 1, 4: two iterations merged
                                "2@0{-2..-1} 0@2{-2..-1} 2@8{0..0} =>{-2..-1} "}));  // 1, 3
  EXPECT_EQ(schedule.updates(), 3);
}

// [1, 8] holds the longest piece or, from 2 on, the two others.
TEST(DeftKnapsacks, TakeTheBestSuffixOfAlgorithmOne) {
  const DeftSchedule schedule =
      deft_knapsacks(problem_of(1, 10, {{7, 1}, {4, 2}, {4, 2}}), DeftFill::kGreedy);
  EXPECT_EQ(text_of(schedule.prologue.at(0)), "1@2{0..0} 2@6{0..0} ");
}

TEST(DeftKnapsacks, ApplyAtOnceWhatIsSentInItsOwnIteration) {
  const DeftSchedule schedule = deft_knapsacks(problem_of(1, 10, {{4, 2}, {3, 7}}), DeftFill::kGreedy);
  EXPECT_TRUE(schedule.prologue.empty());
  EXPECT_EQ(text_of(schedule.period), (std::vector<std::string>{"0@2{0..0} 1@7{0..0} =>{0..0} "}));
}

// Both generations would fit into one iteration, which has one update.
TEST(DeftSearch, UpdatesAtMostOnceInAnIteration) {
  const DeftSchedule schedule = deft_search(problem_of(1, 10, {{1, 2}, {1, 3}}));
  EXPECT_EQ(text_of(schedule.period), (std::vector<std::string>{"0@0{-1..-1} 1@1{-1..-1} =>{-1..-1} "}));
}

// Gradients of a and b exist at 3 ms. a first: 4 ms to wait, a and b's forward wait until 8, then 2 ms more. b
// first: a waits for 8.
TEST(DeftPrompt, SendsFirstWhatTheNextForwardNeedsFirst) {
  Workload workload{.name = "w"};
  workload.layers = {
      {.name = "a", .forward_ns = 1'000'000, .communication_ns = 4'000'000},
      {.name = "b", .forward_ns = 1'000'000, .backward_ns = 1'000'000, .communication_ns = 4'000'000}};
  for (Layer& layer : workload.layers) layer.tensors = {{.name = layer.name + ".w", .numel = 8}};
  const CostModel model(workload, links(1));
  const std::optional<DeftProblem> problem =
      deft_problem(model, 1, Nanoseconds{1'000'000'000}, DeftFusion::kOff);
  EXPECT_EQ(deft_prompt(model, *problem).iteration, 10'000'000);
}

// 3 ms of computation, one tensor of 4 MB.
Workload one_layer(Nanoseconds forward = 1'000'000) {
  Workload workload{.name = "small"};
  workload.layers = {{.name = "a",
                      .forward_ns = forward,
                      .backward_ns = 3'000'000 - forward,
                      .tensors = {{.name = "a.w", .numel = 1'000'000}}}};
  return workload;
}

Cluster link_of(Nanoseconds startup_ns, Decimal us_per_byte) {
  Cluster cluster{.workers = 2};
  cluster.links = {{.name = "net", .startup_ns = startup_ns, .us_per_byte = us_per_byte}};
  return cluster;
}

// 2 ms of communication for 3 ms of computation, all of it exposed without a delay.
TEST(Deft, DelaysWhereThatGains) {
  const Cluster cluster = link_of(0, {5, 4});
  const SimulationResult result =
      simulate(plan_of(make_plan("deft", one_layer(), cluster)), one_layer(), cluster);
  EXPECT_EQ(result.iteration_ns(), 3'000'000);
  EXPECT_DOUBLE_EQ(result.updates_per_iteration, 1);
  EXPECT_EQ(result.staleness_max, 1);
}

// 2.9 ms of communication; in pieces of a forward, 0.1 ms, start-ups take 0.3 ms more.
TEST(Deft, CutsToAnIterationWhereTheForwardIsShort) {
  const Workload workload = one_layer(100'000);
  const Cluster cluster = link_of(9'000, {725, 6});
  EXPECT_DOUBLE_EQ(
      simulate(plan_of(make_plan("deft", workload, cluster)), workload, cluster).updates_per_iteration, 1);
}

// 3 ms and a start-up of 2: three ops of 3 ms fill three iterations, one op of 5 ms takes two.
TEST(Deft, LetsAnOpTakeLongerThanAnIterationWhereStartUpsAreLarge) {
  const Cluster cluster = link_of(2'000'000, {75, 5});
  const SimulationResult result =
      simulate(plan_of(make_plan("deft", one_layer(), cluster)), one_layer(), cluster);
  EXPECT_EQ(result.iteration_ns(), 3'000'000);
  EXPECT_DOUBLE_EQ(result.updates_per_iteration, 0.5);
}

TEST(Deft, HidesStartUpsThatTakeLongerThanAnIteration) {
  const Cluster cluster = link_of(5'000'000, {1, 3});
  const SimulationResult result =
      simulate(plan_of(make_plan("deft", one_layer(), cluster)), one_layer(), cluster);
  EXPECT_EQ(result.iteration_ns(), 3'000'000);
  EXPECT_DOUBLE_EQ(result.updates_per_iteration, 1.0 / 3);  // 9 ms a message
}

TEST(Deft, MergesByTheMeanUnlessToldOtherwise) {
  EXPECT_EQ(plan_of(make_plan("deft", vgg19(), links(1))).merge, Merge::kMean);
  EXPECT_EQ(plan_of(make_plan("deft", vgg19(), links(1), {{"merge", "sum"}})).merge, Merge::kSum);
}

TEST(Deft, UnpartitionedIsInfeasibleAndSaysWhy) {
  const PlanResult result = make_plan("deft", vgg19(), links(1), {{"max_block_us", "200000"}});
  const Infeasible* infeasible = std::get_if<Infeasible>(&result);
  ASSERT_NE(infeasible, nullptr);
  EXPECT_NE(infeasible->reason.find("bucket4"), std::string::npos) << infeasible->reason;
  EXPECT_NE(infeasible->reason.find("178643 us"), std::string::npos) << infeasible->reason;
}

TEST(Deft, SaysWhatIsWrongWithABlockSize) {
  const auto reason = [](const Cluster& cluster, const char* max_block_us) {
    return std::get<Infeasible>(make_plan("deft", one_layer(), cluster, {{"max_block_us", max_block_us}}))
        .reason;
  };
  EXPECT_NE(reason(link_of(10'000, {1, 3}), "5").find("Raise max_block_us"), std::string::npos);
  EXPECT_NE(reason(link_of(0, {1, 3}), "0.5").find("Raise max_block_us"), std::string::npos);  // 8000 pieces
  EXPECT_NE(reason(link_of(0, {2, 1}), "1000").find("more than 128 iterations"),
            std::string::npos);  // 800 ms
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
