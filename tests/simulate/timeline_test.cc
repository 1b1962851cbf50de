// Timelines computed by hand, one feature at a time.
//
// Two layers, forward 10 and 20, backward 40 and 30 (in forward order; backward runs layer 1 first): compute
// 100. Iteration 0: forward 0-10-30, backward of layer 1 ends at 60, of layer 0 at 100. Times in ns; a given
// communication time is the cost of an op.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "gradweave/error.h"
#include "gradweave/simulate.h"

namespace gradweave {
namespace {

Workload two_layers(Nanoseconds communication_0, Nanoseconds communication_1) {
  return {.name = "two",
          .layers = {{.name = "a",
                      .forward_ns = 10,
                      .backward_ns = 40,
                      .communication_ns = communication_0,
                      .tensors = {{"a.w", 100}}},
                     {.name = "b",
                      .forward_ns = 20,
                      .backward_ns = 30,
                      .communication_ns = communication_1,
                      .tensors = {{"b.w", 100}}}}};
}

Cluster links(std::size_t count) {
  Cluster cluster{.workers = 2};
  for (std::size_t k = 0; k < count; ++k) cluster.links.push_back({.name = "eth" + std::to_string(k)});
  return cluster;
}

Op op(std::int32_t block, Release release, std::vector<std::int32_t> merges = {0}) {
  return {.link = "eth0", .blocks = {block}, .merges = std::move(merges), .release = release};
}
Release after_backward(std::int32_t layer, Nanoseconds delay = 0) {
  return {{PointKind::kBackwardEnd, layer}, delay};
}
Apply apply(Point at, std::vector<std::int32_t> blocks, std::vector<std::int32_t> merges = {0}) {
  return {.at = at, .blocks = std::move(blocks), .merges = std::move(merges)};
}
constexpr Point kEnd{PointKind::kIterationEnd};

// Both layers all-reduced as they become ready, applied at iteration_end.
Plan plain_plan() {
  return {.blocks = {{"a.w", 0, 100}, {"b.w", 0, 100}},
          .links = {{"eth0", 1}},
          .period = {{.ops = {op(1, after_backward(1)), op(0, after_backward(0))},
                      .applies = {apply(kEnd, {0, 1})}}}};
}

// Layers whose communication takes what the cluster's only link says.
std::pair<Workload, Cluster> with_costs_of_the_link(Nanoseconds startup, Decimal us_per_byte) {
  std::pair<Workload, Cluster> made{two_layers(0, 0), links(1)};
  for (Layer& layer : made.first.layers) layer.communication_ns.reset();
  made.second.links[0].startup_ns = startup;
  made.second.links[0].us_per_byte = us_per_byte;
  return made;
}

TEST(ByHand, OneLinkInOrder) {
  // b: 60 to 110; a is ready at 100, starts at 110, ends at 125.
  const SimulationResult result = simulate(plain_plan(), two_layers(15, 50), links(1));
  EXPECT_EQ(result.cycle_ns, 125);
  EXPECT_DOUBLE_EQ(result.exposed_ns, 25);
  ASSERT_EQ(result.exposed_layers.size(), 1U);
  EXPECT_EQ(result.exposed_layers[0].layer, -1);
  EXPECT_EQ(result.exposed_layers[0].reason, "start-up and transfer of the op itself");  // 15 of 25
  EXPECT_DOUBLE_EQ(result.links[0].busy_ns, 65);
}

TEST(ByHand, TheLinkIsNamedWhereItWasBusy) {
  // b: 60 to 160; a: 160 to 175. Of the wait 100 to 175 the link was busy with b for 60.
  const SimulationResult result = simulate(plain_plan(), two_layers(15, 100), links(1));
  EXPECT_EQ(result.cycle_ns, 175);
  EXPECT_EQ(result.exposed_layers[0].reason, "link eth0 busy with earlier ops");
}

TEST(ByHand, TwoLinksDontWaitForEachOther) {
  Plan plan = plain_plan();
  plan.links.push_back({"eth1", 1});
  plan.period[0].ops[1].link = "eth1";
  EXPECT_EQ(simulate(plan, two_layers(15, 100), links(2)).cycle_ns, 160);  // b: 60 to 160; a: 100 to 115
}

TEST(ByHand, ADelayAfterTheReleaseIsWaitedFor) {
  Plan plan = plain_plan();
  plan.period[0].ops[1].release.delay_ns = 30;  // a: 130 to 135
  const SimulationResult result = simulate(plan, two_layers(5, 10), links(1));
  EXPECT_EQ(result.cycle_ns, 135);
  EXPECT_EQ(result.exposed_layers[0].reason, "released late");
}

TEST(ByHand, OptimizerTimeIsSpreadByBytes) {
  Plan plan = plain_plan();
  plan.period[0].applies = {apply(kEnd, {0}), apply(kEnd, {1})};
  // Wait until 125, then two halves of 9: 4 and 5.
  const SimulationResult result = simulate(plan, two_layers(15, 50), links(1), {.optimizer_ns = 9});
  EXPECT_EQ(result.cycle_ns, 134);
  EXPECT_EQ(result.compute_ns, 109);
}

TEST(ByHand, AStepOutsideOfTheEndTakesTimeBesidesItsShare) {
  // At the end both are one step.
  EXPECT_EQ(simulate(plain_plan(), two_layers(15, 50), links(1), {.optimizer_ns = 8, .apply_ns = 3}).cycle_ns,
            125 + 8);
  Plan plan = plain_plan();
  plan.period[0].applies = {apply({PointKind::kForwardStart, 0}, {0}, {-1}),
                            apply({PointKind::kForwardStart, 1}, {1}, {-1})};
  // Each takes 3 and half of 8.
  const SimulationResult result =
      simulate(plan, two_layers(1, 1), links(1), {.optimizer_ns = 8, .apply_ns = 3});
  EXPECT_EQ(result.compute_ns, 100 + 2 * 3 + 8);
  EXPECT_EQ(result.cycle_ns, 100 + 1 + 2 * 3 + 8);  // a's message is waited for
}

TEST(ByHand, ForwardOverlapWaitsLayerByLayer) {
  Plan plan = plain_plan();
  plan.period[0].applies = {apply({PointKind::kForwardStart, 0}, {0}, {-1}),
                            apply({PointKind::kForwardStart, 1}, {1}, {-1})};
  // b: 60 to 130; a: 130 to 150, which the forward of a waits for; b's result is there by then.
  const SimulationResult result = simulate(plan, two_layers(20, 70), links(1));
  EXPECT_EQ(result.cycle_ns, 150);
  ASSERT_EQ(result.exposed_layers.size(), 1U);
  EXPECT_EQ(result.exposed_layers[0].layer, 0);
  EXPECT_EQ(result.staleness_max, 0);
}

TEST(ByHand, ADelayFromTheIterationBeforeIsPartOfTheState) {
  // b is sent 185 after its gradient of the iteration before, and takes 5: E(k) = max(E(k-1) + 100, E(k-2) +
  // 60 + 185
  // + 5), E(0) = 100. So iterations of 150 and of 100 take turns, though all else is the same after each.
  for (const std::int32_t concurrency : {1, 0}) {
    Plan plan = plain_plan();
    plan.links[0].concurrency = concurrency;
    plan.period[0].ops = {op(1, {{PointKind::kBackwardEnd, 1, -1}, 185})};
    plan.period[0].applies = {apply(kEnd, {1})};
    const SimulationResult result = simulate(plan, two_layers(0, 5), links(1));
    EXPECT_EQ(result.cycle_ns, 250);
    EXPECT_EQ(result.cycle_iterations, 2);
  }
}

TEST(ByHand, HowLongAnOpHasRunIsPartOfTheState) {
  // Op j runs from 60 + 101 j, iteration k ends at 100 (k + 1) until it has to wait for op k - 2: for more than 100
  // iterations each ends 1 earlier in the op under way, then both take 101.
  Plan plan = plain_plan();
  plan.links.push_back({"eth1", 0});  // a's op, which takes no time, has the simulator for shared links do it
  plan.period[0].ops = {op(1, after_backward(1)), op(0, after_backward(0))};
  plan.period[0].ops[1].link = "eth1";
  plan.period[0].applies = {apply(kEnd, {1}, {-2}), apply(kEnd, {0})};
  const SimulationResult result = simulate(plan, two_layers(0, 101), links(2));
  EXPECT_EQ(result.cycle_ns, 101 * result.cycle_iterations);
}

TEST(ByHand, AllGatherWaitsForItsReduceScatterOnAnotherLink) {
  Plan plan = plain_plan();
  plan.links.push_back({"eth1", 1});
  std::vector<Op>& ops = plan.period[0].ops;
  ops.erase(ops.begin());
  plan.period[0].applies = {apply(kEnd, {0})};
  ops[0].collective = Collective::kReduceScatter;
  ops.push_back(ops[0]);
  ops[1].collective = Collective::kAllGather;
  ops[1].link = "eth1";
  // 25 all in all: floor of half is 12, from 100 to 112, then 13.
  EXPECT_EQ(simulate(plan, two_layers(25, 0), links(2)).cycle_ns, 125);
}

TEST(ByHand, SharedLinkHalvesTheSpeedOfTwo) {
  Plan plan = plain_plan();
  plan.links[0].concurrency = 0;
  // b alone from 60 to 100: 10 of its 50 left. From 100 both at half speed: b ends at 120, a has 5 of 15
  // left: 125.
  EXPECT_EQ(simulate(plan, two_layers(15, 50), links(1)).cycle_ns, 125);
}

TEST(ByHand, StartUpPassesOffTheSharedLink) {
  const auto [workload, cluster] = with_costs_of_the_link(30, {1, 4});  // 400 bytes: 40 ns
  Plan plan = plain_plan();
  EXPECT_EQ(simulate(plan, workload, cluster).cycle_ns, 200);  // b: 60 to 130; a: 130 to 200
  plan.links[0].concurrency = 0;
  EXPECT_EQ(simulate(plan, workload, cluster).cycle_ns, 170);  // b: 90 to 130; a: start-up to 130, then 40
}

TEST(ByHand, ContentionSlowsComputeWhileALinkIsBusy) {
  Plan plan = plain_plan();
  // b is sent from 60 to 80, during which 10 of the 40 of a's backward pass; the other 30 until 110. Then
  // a: 5.
  const SimulationResult result = simulate(plan, two_layers(5, 20), links(1), {.contention = {2, 0}});
  EXPECT_EQ(result.cycle_ns, 115);
  EXPECT_EQ(result.compute_ns, 100);
}

TEST(ByHand, HandoverDelaysOpsThatFindTheLinkIdle) {
  // b is let go at 60 and a at 100. b is sent from 67 to 87, a from 107 to 112.
  EXPECT_EQ(simulate(plain_plan(), two_layers(5, 20), links(1), {.handover_ns = 7}).cycle_ns, 112);
  // b: 67 to 127. The link then takes a at once.
  EXPECT_EQ(simulate(plain_plan(), two_layers(5, 60), links(1), {.handover_ns = 7}).cycle_ns, 132);
}

TEST(ByHand, HandoverDelaysAStepOnAnotherLink) {
  Plan plan = plain_plan();
  std::vector<Op>& ops = plan.period[0].ops;
  ops.insert(ops.begin() + 1, ops[0]);
  ops[0].collective = Collective::kReduceScatter;
  ops[1].collective = Collective::kAllGather;
  // b: 67 to 97 and, as the link goes on, to 127; a to 132.
  EXPECT_EQ(simulate(plan, two_layers(5, 60), links(2), {.handover_ns = 7}).cycle_ns, 132);
  // b: 67 to 97, on the other link 104 to 134.
  plan.links.push_back({"eth1", 1});
  ops[1].link = "eth1";
  EXPECT_EQ(simulate(plan, two_layers(5, 60), links(2), {.handover_ns = 7}).cycle_ns, 134);
}

TEST(ByHand, AMessageTakesOfTheComputeThatGoesOn) {
  // b is sent from 60, as the 40 of a's backward begin: 44. a is sent from 104, beside nothing.
  const SimulationResult result = simulate(plain_plan(), two_layers(5, 20), links(1), {.launch_ns = 4});
  EXPECT_EQ(result.cycle_ns, 109);
  EXPECT_EQ(result.compute_ns, 100);
}

TEST(ByHand, AnIdleLinkSavesUp) {
  // In each iteration the link is idle from when a has been sent, at 100 or later, until b is let go at 60 of the next. So b is
  // spared all it can be, and a what the link saves up from the end of b to 100.
  EXPECT_EQ(simulate(plain_plan(), two_layers(5, 20), links(1), {.burst_ns = 12}).cycle_ns, 100);
  EXPECT_EQ(simulate(plain_plan(), two_layers(50, 20), links(1), {.burst_ns = 12}).cycle_ns, 100 + 50 - 12);
  // b is on its way from 60 to 60 + 60 - 12, and a behind it has nothing to spare.
  EXPECT_EQ(simulate(plain_plan(), two_layers(5, 60), links(1), {.burst_ns = 12}).cycle_ns, 108 + 5);
}

TEST(ByHand, ATokenBucketLargerThanAPeriodsMessagesIsSteadyOnceItHoldsThem) {
  const SimulationResult result =
      simulate(plain_plan(), two_layers(50, 20), links(1), {.burst_ns = 1'000'000'000});
  EXPECT_TRUE(result.steady);
  EXPECT_EQ(result.cycle_ns, 100);
}

TEST(ByHand, ATokenBucketFillsWhileAnOpStartsUp) {
  const auto [workload, cluster] = with_costs_of_the_link(8, {15, 5});  // 400 bytes: 60 ns
  // b starts up to 68 and is spared 12: 116. a behind it starts up to 124, and is spared the 8 of that.
  EXPECT_EQ(simulate(plain_plan(), workload, cluster, {.burst_ns = 12}).cycle_ns, 116 + 8 + 52);
}

TEST(ByHand, TheSlowestClassReleasesTheOp) {
  std::vector<Workload> classes = {two_layers(15, 50), two_layers(15, 50)};
  classes[1].layers[1].backward_ns = 50;  // 80 and 120 instead of 60 and 100
  // b: 80 to 130; a: 130 to 145.
  const SimulationResult result = simulate(plain_plan(), classes, links(1));
  EXPECT_EQ(result.cycle_ns, 145);
  EXPECT_EQ(result.compute_ns, 120);
}

TEST(ByHand, DelayedGenerationLeavesComputeAlone) {
  // Gradients of two iterations merged, sent in the second, applied at the end of the third: 2 updates in 2
  // iterations of each period, staleness 1 and 2.
  Plan plan = plain_plan();
  plan.period.resize(2);
  plan.period[0] = {.applies = {apply(kEnd, {0, 1}, {-2, -1})}};
  plan.period[1] = {.ops = {op(1, after_backward(1), {-1, 0}), op(0, after_backward(0), {-1, 0})}};
  const SimulationResult result = simulate(plan, two_layers(50, 60), links(1));
  EXPECT_DOUBLE_EQ(result.iteration_ns(), 100);  // sent from 160 to 270 of each 200
  EXPECT_DOUBLE_EQ(result.updates_per_iteration, 0.5);
  EXPECT_EQ(result.staleness_max, 2);
  EXPECT_DOUBLE_EQ(result.staleness_mean, 1.5);
  // Overloaded: b from 60 to 160 of the second iteration, a to 320; the end of the third waits for that, so
  // that two iterations take 320, above the link's 260.
  const SimulationResult overloaded = simulate(plan, two_layers(160, 100), links(1));
  EXPECT_DOUBLE_EQ(overloaded.iteration_ns(), 160);
  EXPECT_EQ(overloaded.lower_bound.name, "link eth0");
  EXPECT_DOUBLE_EQ(overloaded.lower_bound.iteration_ns, 130);
}

TEST(ByHand, ParametersAreReadAfterTheLocalStep) {
  Plan plan = plain_plan();
  plan.period[0] = {
      .ops = {op(0, after_backward(0))},
      .applies = {{.at = kEnd, .blocks = {0, 1}, .merges = {0}, .source = Source::kLocalGradient},
                  {.at = {PointKind::kForwardStart, 0},
                   .blocks = {0},
                   .merges = {-1},
                   .source = Source::kAveragedParameter}}};
  plan.period[0].ops[0].payload = Payload::kParameter;
  // Local step from 100 to 110, average from 110 to 125, then the next forward.
  EXPECT_EQ(simulate(plan, two_layers(15, 50), links(1), {.optimizer_ns = 10}).cycle_ns, 125);
}

TEST(ByHand, WithoutRepetitionTheCycleRatioIsReported) {
  const SimulationResult result =
      simulate(plain_plan(), std::vector<Workload>{two_layers(15, 50), two_layers(15, 50)}, links(1));
  EXPECT_EQ(result.method, "repetition");
  // Two classes that nothing couples drift apart for ever; the slower one is reported.
  std::vector<Workload> classes = {two_layers(15, 50), two_layers(15, 50)};
  classes[1].layers[0].backward_ns = 47;
  Plan plan = plain_plan();
  plan.period[0] = {};
  const SimulationResult drifting = simulate(plan, classes, links(1), {.max_periods = 50});
  EXPECT_EQ(drifting.method, "maximum cycle ratio");
  EXPECT_TRUE(drifting.steady);
  EXPECT_DOUBLE_EQ(drifting.iteration_ns(), 107);
}

TEST(ByHand, ACircleIsAnErrorNotAHang) {
  Plan plan = plain_plan();
  plan.period[0].ops[0].release.point = kEnd;  // released after the apply that waits for it
  EXPECT_THROW(simulate(plan, two_layers(15, 50), links(1)), InvalidInput);
  plan.links[0].concurrency = 2;
  EXPECT_THROW(simulate(plan, two_layers(15, 50), links(1)), InvalidInput);
}

TEST(Timelines, HoldComputeOpsAndWaits) {
  const SimulationResult result =
      simulate(plain_plan(), two_layers(15, 50), links(1), {.timeline_iterations = 1});
  std::string text;
  for (const Span& span : result.timeline.spans) {
    text += std::to_string(span.track) + " " + span.label + " " + std::to_string(span.begin_ns) + "-" +
            std::to_string(span.end_ns) + "\n";
  }
  EXPECT_EQ(text,
            "0 a 0-10\n"
            "0 b 10-30\n"
            "0 b 30-60\n"
            "0 a 60-100\n"
            "1 all_reduce b.w 60-110\n"
            "0 wait for all_reduce a.w 100-125\n"
            "1 all_reduce a.w 110-125\n");
}

TEST(Timelines, TracesAreJsonWhateverTheNames) {
  Workload workload = two_layers(15, 50);
  workload.layers[0].name = "quote \" backslash \\ newline \n control \x01 bad utf8 \xff <&>";
  Plan plan = plain_plan();
  plan.links[0].concurrency = 0;  // ops overlap: two lanes
  const Timeline timeline = simulate(plan, workload, links(1), {.timeline_iterations = 2}).timeline;
  const nlohmann::json trace = nlohmann::json::parse(to_chrome_trace({timeline, timeline}));
  std::size_t spans = 0, threads = 0, reasons = 0, starts = 0, ends = 0;
  std::map<std::pair<int, std::string>, double> counters;  // last value
  double first = 1e9;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    spans += event.at("ph") == "X";
    threads += event.at("name") == "thread_name";
    starts += event.at("ph") == "s";
    ends += event.at("ph") == "f";
    if (event.contains("ts")) first = std::min(first, event.at("ts").get<double>());
    if (!event.contains("args")) continue;
    reasons += event.at("args").contains("reason");
    if (event.at("ph") == "C")
      counters[{event.at("pid").get<int>(), event.at("name").get<std::string>()}] =
          event.at("args").begin().value().get<double>();
  }
  EXPECT_EQ(first, 0);
  EXPECT_EQ(starts, 2U * 2);  // each wait from its op
  EXPECT_EQ(ends, starts);
  EXPECT_EQ(counters.size(), 2U * 2);
  for (const auto& [counter, last] : counters) {
    if (counter.second == "bytes in flight") {
      EXPECT_EQ(last, 0);
    } else {
      EXPECT_GT(last, 0) << counter.second;
    }
  }
  EXPECT_EQ(spans, 2 * timeline.spans.size());
  EXPECT_EQ(threads, 2U * 3);
  EXPECT_EQ(reasons, 2U * 2);
  const std::string picture = to_svg({timeline});
  EXPECT_EQ(picture.find('\x01'), std::string::npos);
  EXPECT_NE(picture.find("&lt;&amp;&gt;"), std::string::npos);
}

TEST(Timelines, PicturesShowTheirTimeAndALegendOfWhatIsDrawn) {
  const Timeline timeline =
      simulate(plain_plan(), two_layers(15, 50), links(1), {.timeline_iterations = 2}).timeline;
  const std::string picture = to_svg({timeline}, {.width_ns = 1000, .iteration_ns = 125});
  EXPECT_NE(picture.find("0.125 us per iteration"), std::string::npos);
  EXPECT_NE(picture.find(">all_reduce<"), std::string::npos);
  EXPECT_EQ(picture.find(">all_gather<"), std::string::npos);
  EXPECT_NE(picture.find(">1 us<"), std::string::npos);  // the axis goes as far as the width
}

}  // namespace
}  // namespace gradweave
