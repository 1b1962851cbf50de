#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

#include "gradweave/json.h"
#include "gradweave/observe.h"
#include "gradweave/schemes.h"
#include "testing/measures.h"

namespace gradweave {
namespace {

using ::testing::HasSubstr;
using testing::statistics_of;

Workload small() {
  return parse_workload(R"({"version": 1, "name": "small", "layers": [
      {"name": "a", "forward_us": 100, "backward_us": 200, "tensors": [{"name": "a.w", "numel": 1000, "dtype": "float32"}]},
      {"name": "b", "forward_us": 200, "backward_us": 500, "tensors": [{"name": "b.w", "numel": 40000, "dtype": "float32"}]}]})");
}

Cluster line(double startup_us, double us_per_byte) {
  return {.workers = 4,
          .links = {{.name = "eth0",
                     .startup_ns = static_cast<Nanoseconds>(startup_us * 1000),
                     .us_per_byte = decimal_from_double(us_per_byte, "rate")}}};
}

Plan plan_of(const std::string& scheme, const Workload& workload, const Cluster& cluster) {
  return std::get<Plan>(make_plan(scheme, workload, cluster, {}));
}

TEST(IterationStatistics, TheRanksShortestOpsAndLongestCompute) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const IterationStatistics first{.first = 3,
                                  .iterations = 1,
                                  .op_ns = {5, 9},
                                  .backward_ns = {1, 2},
                                  .forward_ns = 4,
                                  .exposed_ns = 7,
                                  .iteration_ns = 20,
                                  .compute_ns = {7, kNone}};
  IterationStatistics second = first;
  second.op_ns = {6, 8}, second.backward_ns = {3, 1}, second.forward_ns = 2, second.exposed_ns = 6;
  second.iteration_ns = 21, second.compute_ns = {kNone, 6};
  std::vector<double> numbers = to_numbers(first);
  const std::vector<double> others = to_numbers(second);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::min(numbers[i], others[i]);
  const IterationStatistics all = from_numbers(numbers, second);
  EXPECT_EQ(all.first, 3);
  EXPECT_EQ(all.op_ns, (std::vector<double>{5, 8}));
  EXPECT_EQ(all.backward_ns, (std::vector<double>{3, 2}));
  EXPECT_EQ(all.compute_ns, (std::vector<double>{7, 6}));
  EXPECT_EQ(all.forward_ns, 4);
  EXPECT_EQ(all.exposed_ns, 6);
  EXPECT_EQ(all.iteration_ns, 21);
}

TEST(Observer, FindsStartUpAndRateApart) {
  const Workload workload = small();
  const Cluster planned = line(100, 0.01), real = line(250, 0.03);
  const Plan plan = plan_of("wfbp", workload, planned);  // messages of 4 and 160 kB
  Observer observer(plan, workload, planned, 1e-6);
  observer.add(statistics_of(plan, workload, real, 1));
  const Link found = observer.cluster().links.front();
  EXPECT_NEAR(static_cast<double>(found.startup_ns), 250'000, 5'000);
  EXPECT_NEAR(to_double(found.us_per_byte), 0.03, 0.001);
}

TEST(Observer, FindsAStartUpThatGrewFourHundredTimes) {
  const Workload workload = small();
  const Cluster planned = line(50, 0.02), real = line(20'000, 0.02);
  const Plan plan = plan_of("wfbp", workload, planned);
  Observer observer(plan, workload, planned, 1e-6);
  observer.add(statistics_of(plan, workload, real, 1));
  const Link found = observer.cluster().links.front();
  EXPECT_NEAR(static_cast<double>(found.startup_ns), 20e6, 0.5e6);
  EXPECT_NEAR(to_double(found.us_per_byte), 0.02, 0.005);
}

// Long messages are shorter than start-up and bytes together where a link has saved up: then a start-up that hardly shows in them
// would vanish.
TEST(Observer, AStartUpThatHardlyShowsStaysAsPlanned) {
  Workload workload = small();
  workload.layers[0].tensors[0].numel = 20'000;
  const Cluster planned = line(20, 0.01);
  const Plan plan = plan_of("wfbp", workload, planned);  // messages of 80 and 160 kB
  Observer observer(plan, workload, planned, 1e-6);
  IterationStatistics sample = statistics_of(plan, workload, planned, 1);
  for (double& ns : sample.op_ns) ns -= 40'000;
  observer.add(sample);
  const Link found = observer.cluster().links.front();
  EXPECT_NEAR(static_cast<double>(found.startup_ns), 20'000, 5'000);
  EXPECT_NEAR(to_double(found.us_per_byte), 0.01, 0.001);
}

TEST(Observer, OneSizeOfMessageGivesOneFactor) {
  const Workload workload = small();
  const Cluster planned = line(100, 0.01), real = line(200, 0.02);
  const Plan plan = plan_of("sequential", workload, planned);
  Observer observer(plan, workload, planned, 1e-6);
  observer.add(statistics_of(plan, workload, real, 1));
  const Link found = observer.cluster().links.front();
  EXPECT_NEAR(static_cast<double>(found.startup_ns), 200'000, 1'000);
  EXPECT_NEAR(to_double(found.us_per_byte), 0.02, 0.0001);
}

TEST(Observer, ComputeIsThatOfTheLastSamples) {
  const Workload workload = small();
  const Cluster cluster = line(100, 0.01);
  const Plan plan = plan_of("wfbp", workload, cluster);
  Observer observer(plan, workload, cluster, 1e-6);
  observer.add(statistics_of(plan, workload, cluster, 1.5));
  const Workload found = observer.workload();
  EXPECT_NEAR(static_cast<double>(found.layers[0].forward_ns), 150'000, 10);
  EXPECT_NEAR(static_cast<double>(found.layers[1].backward_ns), 750'000, 10);
}

TEST(Observer, WhatIsAsPlannedAsksForNoPlan) {
  const Workload workload = small();
  const Cluster cluster = line(100, 0.01);
  const Plan plan = plan_of("wfbp", workload, cluster);
  Observer observer(plan, workload, cluster, 1e-6);
  for (int i = 0; i < 50; ++i)
    EXPECT_FALSE(observer.add(statistics_of(plan, workload, cluster, 1 + 0.001 * (i % 3))));
}

TEST(Observer, CompressedHalvesAreAsPlanned) {
  const Workload workload = small();
  const Cluster cluster = line(100, 0.01);
  for (const char* compressor : {"none", "fp16", "int8"}) {
    const Plan plan = std::get<Plan>(make_plan("dear", workload, cluster, {{"compressor", compressor}}));
    Observer observer(plan, workload, cluster, 1e-6);
    for (int i = 0; i < 10; ++i) EXPECT_FALSE(observer.add(statistics_of(plan, workload, cluster, 1)));
    EXPECT_NEAR(observer.report().links[0].factor, 1, 1e-3) << compressor;
  }
}

// What messages were known to take of computation is no change, and not counted twice in the next plan.
TEST(Observer, LayersAreThoseWithoutMessages) {
  const Workload workload = small();
  const Cluster cluster = line(100, 0.01);
  const SimulationOptions overheads{.optimizer_ns = 50'000, .contention = {2, 0}};
  const Plan plan = plan_of("wfbp", workload, cluster);
  Observer observer(plan, workload, cluster, 1e-6, false, {}, overheads);
  // The first message starts once the second layer's gradient is there: 200 of 700 us beside it.
  IterationStatistics sample = statistics_of(plan, workload, cluster, 1);
  const double backward = sample.backward_ns[0] + sample.backward_ns[1];
  for (double& ns : sample.backward_ns) ns *= (backward + 200'000) / backward;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(observer.add(sample));
  const Workload found = observer.workload();
  for (std::size_t l = 0; l < found.layers.size(); ++l) {
    EXPECT_NEAR(static_cast<double>(found.layers[l].forward_ns),
                static_cast<double>(workload.layers[l].forward_ns), 100);
    EXPECT_NEAR(static_cast<double>(found.layers[l].backward_ns),
                static_cast<double>(workload.layers[l].backward_ns), 100);
  }
  const Observer::Report report = observer.report();
  EXPECT_EQ(report.predicted.compute_ns, 1'000'000 + 200'000 + 50'000);
  EXPECT_EQ(report.predicted.exposed_ns, report.predicted.iteration_ns() - 1'250'000);
  EXPECT_EQ(report.predicted.iteration_ns(), simulate(plan, workload, cluster, overheads).iteration_ns());
}

// Of what a link has saved up a message is shorter, which is no change.
TEST(Observer, WhatATokenBucketSparesIsPlanned) {
  const Workload workload = small();
  const Cluster cluster = line(100, 0.01);
  const SimulationOptions overheads{.burst_ns = 500'000};
  const Plan plan = plan_of("sequential", workload, cluster);
  Observer observer(plan, workload, cluster, 1e-6, false, {}, overheads);
  IterationStatistics sample = statistics_of(plan, workload, cluster, 1);
  // Of b, 160 kB, and of a, 4 kB. Each spends what it can of the bucket, which a start-up fills by 100 us.
  for (std::size_t op = 0; op < sample.op_ns.size(); op += 2) {
    double &of_b = sample.op_ns[op], &of_a = sample.op_ns[op + 1];
    const double left = 500e3 - std::min(of_b - 100e3, 500e3);
    of_b -= std::min(of_b - 100e3, 500e3);
    of_a -= std::min(of_a - 100e3, 100e3 + left);
  }
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(observer.add(sample));
  const Link found = observer.cluster().links.front();
  EXPECT_NEAR(static_cast<double>(found.startup_ns), 100'000, 3'000);
  EXPECT_NEAR(to_double(found.us_per_byte), 0.01, 0.0003);
  Observer without(plan, workload, cluster, 1e-6);
  bool asks = false;
  for (int i = 0; i < 10; ++i) asks |= without.add(sample);
  EXPECT_TRUE(asks);
}

TEST(Observer, AWrongAssumptionAsksOnce) {
  const Workload workload = small();
  const Cluster planned = line(100, 0.01);
  const Plan plan = plan_of("wfbp", workload, planned);
  Observer observer(plan, workload, planned, 1e-6);
  int asked = 0;
  for (int i = 0; i < 50; ++i)
    asked += observer.add(statistics_of(plan, workload, line(100, 0.02), 1 + 0.001 * (i % 3)));
  EXPECT_EQ(asked, 1);
}

// One message takes nine tenths of the planned time, and no longer than that; the others take forty times as long.
TEST(Observer, ManyShortOpsAreSeenBesideALongOne) {
  const Workload workload = small();
  const Cluster planned = line(10, 0.01);
  const Plan plan = plan_of("wfbp", workload, planned);
  Observer observer(plan, workload, planned, 1e-6, true);
  IterationStatistics sample = statistics_of(plan, workload, planned, 1);
  for (double& ns : sample.op_ns)
    if (ns < 1e6) ns *= 40;
  EXPECT_FALSE(observer.add(sample));
  EXPECT_TRUE(observer.add(sample));
}

TEST(Observer, OfWhatWasObservedMoreIsTolerated) {
  const Workload workload = small();
  const Cluster planned = line(100, 0.01);
  const Plan plan = plan_of("wfbp", workload, planned);
  for (const auto& [rate, wanted] : {std::pair(0.013, 0), {0.03, 1}}) {
    Observer observer(plan, workload, planned, 1e-6, true);
    int asked = 0;
    for (int i = 0; i < 50; ++i)
      asked += observer.add(statistics_of(plan, workload, line(100, rate), 1)) ? 1 : 0;
    EXPECT_EQ(asked, wanted) << rate;
  }
}

TEST(Observer, AChangeAsksAndOnlyTheNewRateCounts) {
  const Workload workload = small();
  const Cluster planned = line(100, 0.01);
  const Plan plan = plan_of("wfbp", workload, planned);
  Observer observer(plan, workload, planned, 1e-6);
  const auto noisy = [&](double rate, int i) {
    return statistics_of(plan, workload, line(100 + i % 3, rate), 1 + 0.001 * (i % 3));
  };
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(observer.add(noisy(0.01, i)));
  EXPECT_FALSE(observer.add(noisy(0.02, 20)));
  EXPECT_TRUE(observer.add(noisy(0.02, 21)));
  EXPECT_NEAR(to_double(observer.cluster().links.front().us_per_byte), 0.02, 0.001);
  for (int i = 22; i < 40; ++i) EXPECT_FALSE(observer.add(noisy(0.02, i)));
}

TEST(Observer, AChangeThatIsSeenInItsMiddleIsAskedOnceMore) {
  const Workload workload = small();
  const Cluster planned = line(100, 0.01);
  const Plan plan = plan_of("wfbp", workload, planned);
  Observer observer(plan, workload, planned, 1e-6);
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(observer.add(statistics_of(plan, workload, planned, 1)));
  EXPECT_FALSE(observer.add(statistics_of(plan, workload, line(100, 0.014), 1)));
  EXPECT_TRUE(observer.add(statistics_of(plan, workload, line(100, 0.015), 1)));
  EXPECT_FALSE(observer.add(statistics_of(plan, workload, line(100, 0.085), 1)));
  EXPECT_TRUE(observer.add(statistics_of(plan, workload, line(100, 0.085), 1)));
  EXPECT_NEAR(to_double(observer.cluster().links.front().us_per_byte), 0.085, 0.005);
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(observer.add(statistics_of(plan, workload, line(100, 0.085), 1)));
}

TEST(Observer, SeesALinkThatOpsShare) {
  const Workload workload = small();
  const Cluster planned = line(100, 0.01);
  const Plan plan = plan_of("asc_wfbp", workload, planned);
  for (const auto& [startup, wanted] : {std::pair(100, 0), {120, 0}, {20'000, 1}}) {
    Cluster real = line(startup, 0.01);
    Observer observer(plan, workload, planned, 1e-6, true);
    int asked = 0;
    for (int i = 0; i < 20; ++i) asked += observer.add(statistics_of(plan, workload, real, 1)) ? 1 : 0;
    EXPECT_EQ(asked, wanted) << startup;
    const Nanoseconds found = observer.cluster().links.front().startup_ns;
    EXPECT_EQ(found > planned.links.front().startup_ns * 10, wanted == 1) << startup;
  }
}

TEST(Observer, TellsStartUpsFromBytesWhereOpsShareALink) {
  const Workload workload = small();
  const Cluster planned = line(100, 0.01);
  const Plan plan = plan_of("asc_wfbp", workload, planned);
  for (const auto& [startup, rate] : {std::pair(20'000, 0.01), {100, 0.1}, {1000, 0.1}}) {
    Observer observer(plan, workload, planned, 1e-6, true);
    for (int i = 0; i < 20; ++i) observer.add(statistics_of(plan, workload, line(startup, rate), 1));
    const Link found = observer.cluster().links.front();
    EXPECT_NEAR(static_cast<double>(found.startup_ns), 1e3 * startup, 500.0 * startup) << startup;
    EXPECT_NEAR(to_double(found.us_per_byte), rate, 0.5 * rate) << startup;
  }
}

TEST(Observer, EchoesShowThatAnIdleLinkRecovers) {
  const Workload workload = small();
  Cluster planned = line(100, 0.01);
  planned.links.push_back(
      {.name = "eth1", .startup_ns = 1'000'000, .us_per_byte = decimal_from_double(0.5, "rate")});
  const Plan plan = plan_of("wfbp", workload, planned);  // on the first link alone
  Observer observer(plan, workload, planned, 1e-6);
  ASSERT_EQ(observer.idle(), std::vector<std::string>{"eth1"});
  const auto add = [&](double echo_ns) {
    return observer.add(statistics_of(plan, workload, planned, 1), {echo_ns});
  };
  EXPECT_FALSE(add(std::numeric_limits<double>::infinity()));  // before the first
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(add(30e6 * (1 + 0.1 * (i * 7 % 5))));
  EXPECT_FALSE(add(0));  // still on its way
  EXPECT_EQ(observer.cluster(), planned);
  // Another plan is in force when the link recovers: what was usual before still is.
  Observer next(plan, workload, planned, 1e-6, true, observer.usual());
  int found_by_next = 0;
  for (int i = 0; i < 20; ++i)
    found_by_next += next.add(statistics_of(plan, workload, planned, 1), {3.6e6}) ? 1 : 0;
  EXPECT_EQ(found_by_next, 1);
  EXPECT_LT(to_double(next.cluster().links[1].us_per_byte), 0.07);
  int asked = 0;
  for (int i = 0; i < 20; ++i) asked += add(3.6e6 * (1 + 0.1 * (i * 7 % 5))) ? 1 : 0;
  EXPECT_EQ(asked, 1);
  const Cluster found = observer.cluster();
  EXPECT_EQ(found.links[0], planned.links[0]);
  EXPECT_NEAR(to_double(found.links[1].us_per_byte), 0.06, 0.003);
  EXPECT_NEAR(static_cast<double>(found.links[1].startup_ns), 120'000, 6'000);
}

TEST(Observer, SaysWhatIsOff) {
  const Workload workload = small();
  const Cluster planned = line(100, 0.01);
  const Plan plan = plan_of("wfbp", workload, planned);
  Observer observer(plan, workload, planned, 1e-6);
  IterationStatistics sample = statistics_of(plan, workload, line(100, 0.05), 1);
  sample.backward_ns[1] *= 3;
  sample.compute_ns = {100, 100, 140, 100};
  observer.add(sample);
  const Observer::Report report = observer.report();
  EXPECT_EQ(report.differences.front().what, "exposed communication");
  EXPECT_THAT(report.op.what, HasSubstr("b.w"));
  EXPECT_EQ(report.links.front().link, "eth0");
  ASSERT_EQ(report.stragglers.size(), 1U);
  EXPECT_EQ(report.stragglers.front().rank, 2U);
  EXPECT_DOUBLE_EQ(report.stragglers.front().factor, 1.4);
  EXPECT_NEAR(report.ccr, (100 + 0.05 * 4000 + 100 + 0.05 * 160000) / (200 + 3 * 500), 0.01);
  EXPECT_THAT(to_text(report), HasSubstr("rank 2 computes 1.40 times"));
}

// Every scheme's ops, whatever they are, are expected to take what the simulator gives them.
TEST(Observer, EveryScheme) {
  const Workload workload = small();
  const Cluster cluster = line(100, 0.02);
  for (const SchemeInfo& scheme : schemes()) {
    const PlanResult made = make_plan(scheme.name, workload, cluster, {});
    if (!std::holds_alternative<Plan>(made)) continue;
    const Plan& plan = std::get<Plan>(made);
    Observer observer(plan, workload, cluster, 1e-6);
    observer.add(statistics_of(plan, workload, cluster, 1));
    const Link found = observer.cluster().links.front();
    EXPECT_NEAR(static_cast<double>(found.startup_ns), 100'000, 2'000) << scheme.name;
    EXPECT_NEAR(to_double(found.us_per_byte), 0.02, 0.0005) << scheme.name;
  }
}

}  // namespace
}  // namespace gradweave
