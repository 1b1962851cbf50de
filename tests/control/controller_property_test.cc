// Jobs of several ranks in random orders, with a fault at any command: live ranks always end in the same state with the same
// plan, or each of them has an error that names what failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "control/controller.h"
#include "control/fake.h"
#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/schemes.h"

namespace gradweave::testing {
namespace {

using control::Controller;
using control::ControllerOptions;
using control::Phase;
using ::testing::Contains;
using ::testing::HasSubstr;

Cluster network(Nanoseconds startup_ns, double us_per_byte) {
  return {.workers = 2,
          .links = {{.name = "net",
                     .startup_ns = startup_ns,
                     .us_per_byte = decimal_from_double(us_per_byte, "rate")}}};
}

Workload unprofiled() {
  Workload shape = four_layers();
  for (Layer& layer : shape.layers) layer.forward_ns = layer.backward_ns = 0;
  return shape;
}

std::string runs_all(const Plan&, const Workload&) { return ""; }

// What a rank was like when it ended.
struct End {
  Phase phase = Phase::kStarting;
  std::string plan, prediction, error;
  std::optional<TuningReport> tuning;
  std::vector<std::string> told, installed;
  std::int64_t commands = 0;
};

// One rank's job of so many iterations; `at`: what happens before an iteration, alike on all ranks.
using Happening = std::function<void(std::int64_t iteration, FakeJob&, Controller&)>;

std::vector<End> run(World& world, const Setting& setting, const ControllerOptions& options,
                     std::int64_t iterations, const Happening& at = nullptr,
                     const control::Unrunnable& unrunnable = runs_all) {
  std::vector<End> ends(static_cast<std::size_t>(world.size()));
  world.run([&](int rank) {
    End& end = ends[static_cast<std::size_t>(rank)];
    FakeJob job(world, setting, rank);
    control::Loop loop;
    Controller controller(job, loop, options, unrunnable);
    try {
      controller.begin();
      controller.layers_known(unprofiled(), {{"net"}});
      for (std::int64_t n = 0; n < iterations; ++n) {
        if (at) at(n, job, controller);
        job.iterate();
        controller.iteration_ended();
      }
      controller.finish();
      end.phase = controller.phase();
      controller.close(false);
    } catch (...) {
      controller.close(true);
      end.commands = job.commands();
      throw;
    }
    end.plan = controller.plan() ? hash_of(*controller.plan()) : "";
    if (controller.prediction()) end.prediction = std::to_string(controller.prediction()->cycle_ns);
    end.tuning = controller.tuning();
    end.told = job.told;
    end.installed = job.installed;
    end.commands = job.commands();
  });
  for (int r = 0; r < world.size(); ++r) ends[static_cast<std::size_t>(r)].error = world.error(r);
  return ends;
}

std::vector<End> run(int ranks, const Setting& setting, const ControllerOptions& options,
                     std::int64_t iterations, const Happening& at = nullptr,
                     const control::Unrunnable& unrunnable = runs_all) {
  World world(ranks, 1);
  return run(world, setting, options, iterations, at, unrunnable);
}

void expect_alike(const std::vector<End>& ends) {
  for (const End& end : ends) {
    EXPECT_EQ(end.error, "");
    EXPECT_EQ(end.phase, Phase::kSettled);
    EXPECT_EQ(end.plan, ends[0].plan);
    EXPECT_EQ(end.prediction, ends[0].prediction);
    EXPECT_EQ(end.tuning, ends[0].tuning);
    EXPECT_EQ(end.installed, ends[0].installed);
  }
}

ControllerOptions quick(const std::string& scheme, const std::map<std::string, std::string>& options = {}) {
  return {.request = {scheme, options}, .warm_up = 2, .profile_iterations = 2};
}

Setting usual() { return {.workload = four_layers(), .cluster = network(50'000, 0.05)}; }

TEST(Controller, ProfilesDecidesAndTells) {
  const std::vector<End> ends = run(3, usual(), quick("auto"), 30);
  expect_alike(ends);
  EXPECT_EQ(ends[0].installed.front(), control::kStarter);
  EXPECT_EQ(ends[0].installed.size(), 2u);
  ASSERT_EQ(ends[0].told.size(), 2u);
  EXPECT_THAT(ends[0].told[0], HasSubstr("in force: " + ends[0].installed.back()));
  EXPECT_THAT(ends[0].told[0], HasSubstr("an iteration predicted, from measured layers and links"));
  EXPECT_THAT(ends[0].told[0], HasSubstr("ddp would take"));
  EXPECT_THAT(ends[0].told[1], HasSubstr("an iteration measured; predicted: "));
  EXPECT_THAT(ends[0].told[1], HasSubstr("times as fast as ddp, which was not measured"));
  EXPECT_TRUE(ends[1].told.empty());
}

TEST(Controller, PredictsWhatTheLoopAndMessagesTakeOfAnIteration) {
  Setting setting = usual();
  setting.overheads = {.optimizer_ns = 3'000'000, .contention = {15, 1}, .burst_ns = 1'250'000};
  for (const char* scheme : {"auto", "ddp"}) {
    std::optional<SimulationResult> expected;
    const std::vector<End> ends =
        run(3, setting, quick(scheme), 30, [&](std::int64_t n, FakeJob& job, Controller& c) {
          if (n == 29 && job.rank() == 2)
            expected = simulate(*c.plan(), setting.workload, setting.cluster, setting.overheads);
        });
    expect_alike(ends);
    EXPECT_EQ(ends[0].prediction, std::to_string(expected->cycle_ns));
    EXPECT_THAT(ends[0].told[0], HasSubstr("; 3.0 ms of it are the optimizer and the rest of the loop"));
    EXPECT_THAT(ends[0].told[0], HasSubstr("messages make computation take 1.50 times as long"));
    EXPECT_THAT(ends[0].told[0], HasSubstr("links that were idle send the first 1.2 ms of messages at once"));
  }
}

TEST(Controller, AProfileOfNothingIsToldAndMakesNoPlanOfAuto) {
  Setting setting = usual();
  setting.unprofiled = true;
  for (const char* scheme : {"auto", "ddp"}) {
    const std::vector<End> ends = run(2, setting, quick(scheme), 30);
    expect_alike(ends);
    EXPECT_THAT(ends[0].told[0], HasSubstr("no iteration could be profiled"));
    EXPECT_EQ(ends[0].installed.back(), std::string(scheme) == "auto" ? control::kStarter : "ddp");
  }
}

TEST(Controller, TellsOptionsAndNoGainOverTheStarter) {
  const std::vector<End> ends = run(2, usual(), quick("ddp", {{"bucket_cap_bytes", "100000"}}), 20);
  expect_alike(ends);
  ASSERT_EQ(ends[0].told.size(), 2u);
  EXPECT_THAT(ends[0].told[0], HasSubstr("in force: ddp with bucket_cap_bytes 100000: "));
  EXPECT_THAT(ends[0].told[1], HasSubstr("ms an iteration measured"));
  EXPECT_THAT(ends[0].told[1], ::testing::Not(HasSubstr("times as")));
}

TEST(Controller, WhatWasGainedIsMeasuredWhereDdpWasInForce) {
  const Plan dear = std::get<Plan>(make_plan("dear", four_layers(), network(50'000, 0.05)));
  const std::vector<End> ends =
      run(2, usual(), quick("ddp"), 60, [&](std::int64_t n, FakeJob&, Controller& c) {
        if (n == 30) c.install(dear);
      });
  expect_alike(ends);
  EXPECT_THAT(ends[0].told.back(), HasSubstr("dear"));
  EXPECT_THAT(ends[0].told.back(), HasSubstr("; ddp took"));
  EXPECT_THAT(ends[0].told.back(), HasSubstr("ms measured"));
}

TEST(Controller, AGivenPlanComesIntoForceWithTheLayers) {
  const Plan plan = std::get<Plan>(make_plan("wfbp", four_layers(), network(1000, 0.01)));
  World world(2, 1);
  const Setting setting = usual();
  world.run([&](int rank) {
    FakeJob job(world, setting, rank);
    control::Loop loop;
    Controller controller(job, loop, quick("auto"), runs_all);
    controller.install(plan);
    EXPECT_EQ(controller.phase(), Phase::kStarting);
    controller.layers_known(unprofiled(), {{"net"}});
    EXPECT_EQ(controller.phase(), Phase::kSettled);
    EXPECT_EQ(controller.plan(), plan);
    EXPECT_FALSE(controller.report());
    controller.close(false);
  });
  EXPECT_EQ(world.error(0) + world.error(1), "");
}

TEST(Controller, ARankThatAloneRefusesIsNamedAndThePlanPassedOver) {
  Setting setting = usual();
  const std::string best = run(2, setting, quick("auto"), 10)[0].installed.back();
  setting.faulty_rank = 1;
  setting.plan_to_refuse = best;
  const std::vector<End> ends = run(2, setting, quick("auto"), 10);
  expect_alike(ends);
  EXPECT_NE(ends[0].installed.back(), best);
  EXPECT_THAT(ends[0].told[0], HasSubstr("was not chosen: rank 1 refuses it"));
}

TEST(Controller, ARankThatRefusesTheOnlyPlanIsNamedOnAll) {
  Setting setting = usual();
  setting.faulty_rank = 1;
  setting.plan_to_refuse = "ddp";
  for (const End& end : run(3, setting, quick("ddp"), 10)) EXPECT_EQ(end.error, "rank 1 refuses it");
}

TEST(Controller, TriesPlansAndKeepsTheBest) {
  ControllerOptions options = quick("dear", {{"buffer_bytes", "1"}});
  options.trials = 4;
  const std::vector<End> ends = run(2, usual(), options, 300);
  expect_alike(ends);
  ASSERT_TRUE(ends[0].tuning);
  EXPECT_TRUE(ends[0].tuning->ended);
  EXPECT_THAT(ends[0].told[1], HasSubstr("tuned by "));
  EXPECT_THAT(ends[0].told[1], HasSubstr("with buffer_bytes"));
}

TEST(Controller, OfAutoItTriesTheBestPlansAndKeepsTheFastest) {
  Setting setting = usual();
  ControllerOptions options = quick("auto");
  const std::string predicted = run(2, setting, options, 10)[0].installed.back();
  options.trials = 5;
  setting.takes.apply_ns = 20'000'000;  // of each step in the forward
  const std::vector<End> ends = run(2, setting, options, 300);
  expect_alike(ends);
  ASSERT_TRUE(ends[0].tuning);
  const std::vector<PlanTuner::Trial>& trials = ends[0].tuning->trials;
  ASSERT_EQ(trials.size(), 5u);
  EXPECT_EQ(trials[0].scheme, predicted);
  const std::string& best = trials[ends[0].tuning->best].scheme;
  EXPECT_NE(best, predicted);
  EXPECT_EQ(ends[0].installed.back(), best);
  for (const PlanTuner::Trial& trial : trials)
    EXPECT_LE(trials[ends[0].tuning->best].seconds[0], trial.seconds[0]) << trial.scheme;
  EXPECT_THAT(ends[0].told[1], HasSubstr("tuned by 5 plans"));
}

// Of the plan that was measured to be the fastest of an `auto` that tries five: its time over the first plan's, and whether it
// stays. `apply_ns`: what steps in the forward take, which the simulator doesn't know.
std::pair<double, bool> fastest_tried(Nanoseconds apply_ns, const std::string& tolerance) {
  Setting setting = usual();
  setting.takes.apply_ns = apply_ns;
  ControllerOptions options = quick("auto", {{"tolerance", tolerance}});
  options.trials = 5;
  const std::vector<End> ends = run(2, setting, options, 300);
  expect_alike(ends);
  const TuningReport& tuning = ends[0].tuning.value();
  std::vector<double> seconds;
  for (const PlanTuner::Trial& trial : tuning.trials) seconds.push_back(trial.seconds[0]);
  const auto fastest = std::ranges::min_element(seconds);
  return {*fastest / seconds[0], tuning.best == static_cast<std::size_t>(fastest - seconds.begin())};
}

TEST(Controller, OfAutoAPlanThatIsHardlyFasterIsNotTaken) {
  const auto [hardly, taken] = fastest_tried(1'550'000, "0.01");
  EXPECT_LT(hardly, 1);
  EXPECT_GT(hardly, 0.97);
  EXPECT_FALSE(taken);
  const auto [faster, taken_then] = fastest_tried(1'750'000, "0.01");
  EXPECT_LT(faster, 0.97);
  EXPECT_GT(faster, 0.9);
  EXPECT_TRUE(taken_then);
  EXPECT_FALSE(fastest_tried(1'750'000, "0.1").second);  // auto's own tolerance
}

TEST(Controller, OfAutoAPlanThatChangesTrainingIsJudgedByHowFarItGets) {
  ControllerOptions options = quick("auto", {{"allow", "exact+delayed"}});
  options.compares_gradients = true;
  options.trials = 8;
  Setting setting = usual();
  setting.gradients = {.own = 2, .mean = 1.5, .own_change = 2, .mean_change = 1, .change = 0.01, .step = 1};
  const std::vector<End> ends = run(2, setting, options, 400);
  expect_alike(ends);
  const TuningReport& tuning = ends[0].tuning.value();
  const auto deft = std::ranges::find(tuning.trials, "deft", &PlanTuner::Trial::scheme);
  ASSERT_NE(deft, tuning.trials.end());
  EXPECT_LT(deft->seconds[0], 0.9 * tuning.trials[tuning.best].seconds[0]);  // but half of the progress
  EXPECT_EQ(tuning.best, 0u);
}

TEST(Controller, OfAutoTheFirstPlanStaysIfNoneIsFaster) {
  ControllerOptions options = quick("auto");
  options.trials = 3;
  const std::vector<End> ends = run(2, usual(), options, 200);
  expect_alike(ends);
  EXPECT_EQ(ends[0].tuning->trials.size(), 3u);
  EXPECT_EQ(ends[0].tuning->best, 0u);
  EXPECT_EQ(ends[0].installed.back(), ends[0].tuning->trials[0].scheme);
}

TEST(Controller, APlanThatTheUserInstallsEndsTheTrials) {
  ControllerOptions options = quick("dear");
  options.trials = 4;
  const Plan plan = std::get<Plan>(make_plan("ddp", four_layers(), network(50'000, 0.05)));
  const std::vector<End> ends = run(2, usual(), options, 100, [&](std::int64_t n, FakeJob&, Controller& c) {
    if (n == 30) c.install(plan);
  });
  expect_alike(ends);
  EXPECT_EQ(ends[0].plan, hash_of(plan));
  ASSERT_TRUE(ends[0].tuning);
  EXPECT_FALSE(ends[0].tuning->ended);
}

// The planner's time is not the world's.
void let_plan(const Controller& controller) {
  while (controller.planning()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(Controller, FollowsALinkThatChanges) {
  Setting setting{.workload = four_layers(), .cluster = network(1000, 1e-6)};
  ControllerOptions options = quick("mg_wfbp");
  options.follows = true;
  const std::vector<End> ends =
      run(2, setting, options, 300, [&](std::int64_t n, FakeJob& job, Controller& controller) {
        if (n == 60 && job.rank() == 0) setting.cluster = network(20'000'000, 1e-6);
        let_plan(controller);
      });
  expect_alike(ends);
  EXPECT_GE(ends[0].installed.size(), 3u);
  EXPECT_THAT(ends[0].told, Contains(HasSubstr("measured times have changed; now in force: mg_wfbp")));
}

TEST(Controller, FollowsHoweverOftenAReportIsAskedFor) {
  ControllerOptions options = quick("mg_wfbp");
  options.follows = true;
  for (const std::int64_t every : {1, 2, 3, 5, 10, 20}) {
    Setting setting{.workload = four_layers(), .cluster = network(1000, 1e-6)};
    const std::vector<End> ends =
        run(2, setting, options, 400, [&](std::int64_t n, FakeJob& job, Controller& controller) {
          if (n == 60 && job.rank() == 0) setting.cluster = network(20'000'000, 1e-6);
          if (n > 10 && n % every == 0) controller.report();
          let_plan(controller);
        });
    expect_alike(ends);
    EXPECT_GE(ends[0].installed.size(), 3u) << every;
  }
}

// A link that has become slow in a job that goes on by the plan that was best before.
// `apply_ns`: Setting::takes.
std::vector<End> run_on(const std::optional<control::Seen>& seen, Nanoseconds apply_ns = 0) {
  Setting setting{.workload = four_layers(), .cluster = network(50'000, 0.003)};
  setting.takes.apply_ns = apply_ns;
  ControllerOptions options = quick("auto");
  options.follows = true;
  const Plan before = std::get<Plan>(make_plan("wfbp", four_layers(), setting.cluster));
  return run(2, setting, options, 300, [&](std::int64_t n, FakeJob& job, Controller& controller) {
    if (n == 0) controller.go_on(before, four_layers(), control::Costs{setting.cluster}, seen, 100);
    if (n == 60 && job.rank() == 0) setting.cluster = network(1'000'000, 0.06);
    let_plan(controller);
  });
}

TEST(Controller, AJobThatGoesOnKnowsWhatItsLoopDoes) {
  const std::vector<std::string> free = run_on(control::Seen())[0].installed;
  const std::vector<std::string> bound = run_on(control::Seen{.traits = {{"edits", ""}}})[0].installed;
  const auto steps_in_forward = [](const std::string& scheme) {
    return demands_of(std::get<Plan>(make_plan(scheme, four_layers(), network(1'000'000, 0.06))))
        .steps_in_forward;
  };
  EXPECT_TRUE(steps_in_forward(free.back())) << free.back();
  EXPECT_GT(bound.size(), 2u);
  EXPECT_FALSE(steps_in_forward(bound.back())) << bound.back();
}

TEST(Controller, APlanThatProvesSlowerIsTakenBackAndToldSo) {
  const std::vector<End> ends = run_on(control::Seen(), /*apply_ns=*/20'000'000);
  expect_alike(ends);
  EXPECT_THAT(ends[0].told,
              Contains(HasSubstr("was slower than the plan before, measured; in force again: wfbp")));
}

TEST(Controller, AJobThatGoesOnWithoutWhatWasSeenKeepsItsPlan) {
  const std::vector<End> ends = run_on(std::nullopt);
  expect_alike(ends);
  EXPECT_EQ(ends[0].installed.back(), "wfbp");
  EXPECT_THAT(ends[0].told, Contains(HasSubstr("from iteration 100; it keeps this plan")));
}

TEST(Controller, AJobThatGoesOnKnowsWhatGradientsShowed) {
  Setting setting{.workload = four_layers(), .cluster = network(50'000, 0.3)};
  setting.gradients = {
      .own = 2, .mean = 1.99, .own_change = 0.001, .mean_change = 0.0005, .change = 0.001, .step = 1};
  ControllerOptions options = quick("auto", {{"allow", "exact+delayed"}});
  options.compares_gradients = true;
  const Plan delayed = std::get<Plan>(make_plan("deft", four_layers(), setting.cluster));
  std::array<control::Seen, 2> seen;
  const auto of = [&](const FakeJob& job) -> control::Seen& {
    return seen[static_cast<std::size_t>(job.rank())];
  };
  expect_alike(run(2, setting, options, 180, [&](std::int64_t n, FakeJob& job, Controller& c) {
    if (n == 30) c.install(delayed);
    if (n == 179) of(job) = c.seen();  // more than one sample is among it
  }));
  const std::vector<End> ends =
      run(2, setting, options, 500, [&](std::int64_t n, FakeJob& job, Controller& c) {
        if (n == 0) c.go_on(delayed, four_layers(), control::Costs{setting.cluster}, of(job), 180);
        if (n == 1) {
          EXPECT_EQ(c.seen().gradients, of(job).gradients);
        }
        if (n == 100 && job.rank() == 0) setting.gradients.change = 5;
      });
  expect_alike(ends);
  EXPECT_THAT(ends[0].told, Contains(HasSubstr("the plan delays gradients")));
  EXPECT_NE(ends[0].installed.back(), "deft");
}

TEST(Controller, WhatGradientsShowedIsRefusedIfItIsCutOff) {
  ControllerOptions options = quick("auto", {{"allow", "exact+delayed"}});
  options.compares_gradients = true;
  const Setting setting = usual();
  const Plan plan = std::get<Plan>(make_plan("wfbp", four_layers(), setting.cluster));
  for (const End& end : run(2, setting, options, 1, [&](std::int64_t, FakeJob&, Controller& c) {
         c.go_on(plan, four_layers(), std::nullopt, control::Seen{.gradients = std::vector<double>(11)}, 1);
       })) {
    EXPECT_THAT(end.error, HasSubstr("cut off"));
  }
}

TEST(Controller, APlannerThatThrowsEndsNothing) {
  Setting setting{.workload = four_layers(), .cluster = network(1000, 1e-6)};
  ControllerOptions options = quick("mg_wfbp");
  options.follows = true;
  std::atomic<bool> throws = false;
  World world(2, 1);
  const std::vector<End> ends = run(
      world, setting, options, 200,
      [&](std::int64_t n, FakeJob& job, Controller& controller) {
        let_plan(controller);
        if (n != 60 || job.rank() != 0) return;
        setting.cluster = network(20'000'000, 1e-6);
        throws = true;
      },
      [&](const Plan&, const Workload&) -> std::string {
        if (throws) throw std::bad_alloc();
        return "";
      });
  expect_alike(ends);
  EXPECT_EQ(ends[0].installed.size(), 2u);
}

TEST(Controller, ThePreserverObjectsToASchemeThatWasAskedFor) {
  ControllerOptions options = quick("deft");
  options.warm_up = 12;
  options.compares_gradients = true;
  const std::vector<End> ends =
      run(2, {.workload = four_layers(), .cluster = network(50'000, 0.1)}, options, 100);
  expect_alike(ends);
}

TEST(Controller, AnObjectionBeforeCostsAreKnownIsTold) {
  Setting setting{.workload = four_layers(), .cluster = network(50'000, 0.1)};
  setting.gradients = {.own = 2, .mean = 1.5, .own_change = 2, .mean_change = 1, .change = 0.01, .step = 1};
  ControllerOptions options = quick("auto", {{"allow", "exact+delayed"}});
  options.compares_gradients = true;
  options.warm_up = 12;
  options.profile_iterations = 4;
  const Plan delayed = std::get<Plan>(make_plan("deft", four_layers(), network(50'000, 0.3)));
  const std::vector<End> ends =
      run(2, setting, options, 400, [&](std::int64_t n, FakeJob& job, Controller& c) {
        if (n == 14) c.install(delayed);  // in the profile
        if (n == 20 && job.rank() == 0) setting.gradients.change = 5;
      });
  expect_alike(ends);
  EXPECT_THAT(ends[0].told, Contains(HasSubstr("the Preserver objects: the plan delays gradients")));
  EXPECT_EQ(ends[0].installed.back(), "deft");
}

TEST(Controller, ABatchWhoseGradientsAreNotFiniteTellsThePreserverNothing) {
  for (const auto& [allowed, told] : {std::pair("exact+corrected", "learn from different data"),
                                      std::pair("exact+delayed", "makes only")}) {
    ControllerOptions options = quick("auto", {{"allow", allowed}});
    options.compares_gradients = true;
    Setting setting{.workload = four_layers(), .cluster = network(50'000, 0.3)};
    setting.gradients = {.own = 2, .mean = 1, .own_change = 0.2, .mean_change = 0.1, .step = 1};
    const std::vector<End> expected = run(2, setting, options, 30);
    EXPECT_THAT(expected[0].told[0], HasSubstr(told));
    setting.not_finite = 6;
    const std::vector<End> ends = run(2, setting, options, 30);
    expect_alike(ends);
    EXPECT_EQ(ends[0].told, expected[0].told);
  }
}

const std::vector<ControllerOptions>& kinds() {
  static const std::vector<ControllerOptions> all = [] {
    std::vector<ControllerOptions> kinds{quick("auto"), quick("ddp"), quick("dear"),
                                         quick("auto", {{"allow", "exact+delayed+corrected"}})};
    kinds[0].follows = kinds[1].follows = true;
    kinds[2].trials = 3;
    kinds[3].compares_gradients = true;
    return kinds;
  }();
  return all;
}

constexpr std::int64_t kIterations = 60;

// How many commands a job of that kind gives a rank.
std::int64_t commands_of(std::size_t kind, int ranks) {
  static std::map<std::pair<std::size_t, int>, std::int64_t> known;
  const auto [entry, made] = known.try_emplace({kind, ranks});
  if (made) entry->second = run(ranks, usual(), kinds()[kind], kIterations)[0].commands;
  return entry->second;
}

RC_GTEST_PROP(Controller, AFaultAtAnyCommandIsPassedOverOrNamedByAll, ()) {
  const int ranks = *rc::gen::inRange(2, 5);
  const auto kind = *rc::gen::inRange<std::size_t>(0, kinds().size());
  const ControllerOptions& options = kinds()[kind];
  Setting setting = usual();
  setting.faulty_rank = *rc::gen::inRange(0, ranks);
  setting.faulty_command = *rc::gen::inRange<std::int64_t>(0, commands_of(kind, ranks));
  setting.fault =
      *rc::gen::element(Fault::kNone, Fault::kRefuses, Fault::kThrows, Fault::kHangs, Fault::kIsLate);
  World world(ranks, *rc::gen::arbitrary<std::uint32_t>());
  const std::vector<End> ends = run(world, setting, options, kIterations);
  const std::string faulty = "rank " + std::to_string(setting.faulty_rank);
  RC_TAG(static_cast<int>(setting.fault));
  const bool failed = std::ranges::any_of(ends, [](const End& end) { return !end.error.empty(); });
  if (setting.fault == Fault::kNone || setting.fault == Fault::kIsLate) RC_ASSERT(!failed);
  for (int r = 0; r < ranks; ++r) {
    const End& end = ends[static_cast<std::size_t>(r)];
    if (!failed) {
      RC_ASSERT(end.phase == ends[0].phase);
      RC_ASSERT(end.plan == ends[0].plan);
      RC_ASSERT(end.prediction == ends[0].prediction);
      RC_ASSERT(end.tuning == ends[0].tuning);
    } else if (r != setting.faulty_rank) {  // each other rank has the reason, or had ended before
      RC_ASSERT(end.error.find(faulty) != std::string::npos || end.phase == Phase::kSettled);
    }
  }
}

}  // namespace
}  // namespace gradweave::testing
