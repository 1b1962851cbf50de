// What the schemes that average parameters promise, on random workloads and clusters, by the simulator.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "schemes/dreamddp/after_step.h"
#include "solve/intervals.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

using Options = std::map<std::string, std::string>;

std::optional<Plan> plan_of(std::string_view scheme, const Workload& workload, const Cluster& cluster,
                            const Options& options = {}) {
  PlanResult result = make_plan(scheme, workload, cluster, options);
  if (Plan* plan = std::get_if<Plan>(&result)) return std::move(*plan);
  return std::nullopt;
}

// The exposed time of one period, exactly. Discards cases in which that is not a whole number of nanoseconds.
Nanoseconds exposed_per_period(const Plan& plan, const Workload& workload, const Cluster& cluster) {
  const SimulationResult result = simulate(plan, workload, cluster);
  RC_ASSERT(result.steady);
  const auto period = static_cast<Nanoseconds>(plan.period.size());
  RC_ASSERT(result.cycle_iterations % period == 0);
  const Nanoseconds periods = result.cycle_iterations / period;
  const Nanoseconds exposed = result.cycle_ns - result.cycle_iterations * result.compute_ns;
  RC_ASSERT(exposed % periods == 0);
  return exposed / periods;
}

Cluster serial_cluster() { return *testing::clusters({.fluid = false}); }
std::string random_period() { return std::to_string(*rc::gen::inRange(1, 13)); }

// Every block steps in every iteration, every average that is sent is used, and a period averages every
// block.
void check_averages(const Plan& plan, const Workload& workload, const Cluster& cluster) {
  const Validation validation = validate(plan, workload, &cluster);
  if (!validation.valid()) RC_FAIL(validation.violations[0].where + ": " + validation.violations[0].what);
  std::set<std::int32_t> averaged;
  std::size_t sent = 0;
  std::size_t used = 0;
  for (const Iteration& iteration : plan.period) {
    std::multiset<std::int32_t> stepped;
    for (const Op& op : iteration.ops) {
      RC_ASSERT(op.payload == Payload::kParameter);
      sent += op.blocks.size();
      averaged.insert(op.blocks.begin(), op.blocks.end());
    }
    for (const Apply& apply : iteration.applies) {
      if (apply.source == Source::kLocalGradient) stepped.insert(apply.blocks.begin(), apply.blocks.end());
      if (apply.source == Source::kAveragedParameter) used += apply.blocks.size();
    }
    RC_ASSERT(stepped.size() == plan.blocks.size());
    RC_ASSERT(std::set(stepped.begin(), stepped.end()).size() == plan.blocks.size());
  }
  RC_ASSERT(sent == used);
  RC_ASSERT(averaged.size() == plan.blocks.size());
}

RC_GTEST_PROP(DelayedAveragingProperty, ThePlannedPeriodHidesEverything, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  const std::optional<Plan> plan = plan_of("delayed_averaging", workload, cluster);
  if (!plan) return;
  check_averages(*plan, workload, cluster);
  const SimulationResult result = simulate(*plan, workload, cluster);
  RC_ASSERT(result.cycle_ns == result.cycle_iterations * result.compute_ns);
}

RC_GTEST_PROP(DelayedAveragingProperty, AnyLongerPeriodHidesEverythingAndAShorterOneStillAverages, ()) {
  const Workload workload = *testing::workloads({.max_numel = 100'000});
  const Cluster cluster = serial_cluster();
  const std::int64_t period = *rc::gen::inRange(1, 13);
  const std::optional<Plan> smallest = plan_of("delayed_averaging", workload, cluster);
  const Plan plan = *plan_of("delayed_averaging", workload, cluster,
                             {{"period", std::to_string(period)}, {"frequent_share", "1"}});
  check_averages(plan, workload, cluster);
  RC_ASSERT(static_cast<std::int64_t>(plan.period.size()) == period);
  const SimulationResult result = simulate(plan, workload, cluster);
  const bool hidden = result.cycle_ns == result.cycle_iterations * result.compute_ns;
  RC_ASSERT(hidden == (smallest && period >= static_cast<std::int64_t>(smallest->period.size())));
}

RC_GTEST_PROP(LocalSgdProperty, TheAverageIsExposedWholly, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = serial_cluster();
  const Plan plan = *plan_of("local_sgd", workload, cluster, {{"period", random_period()}});
  check_averages(plan, workload, cluster);
  const CostModel model(workload, cluster);
  std::map<std::string, Nanoseconds> busy;
  for (const Op& op : plan.period.back().ops) {
    std::vector<Slice> slices;
    for (const std::int32_t b : op.blocks) {
      const Block& block = plan.blocks[static_cast<std::size_t>(b)];
      slices.push_back({*model.index().find_tensor(block.tensor), block.begin, block.end});
    }
    busy[op.link] += model.all_reduce(*find_link(cluster, op.link), slices);
  }
  Nanoseconds longest = 0;
  for (const auto& [link, time] : busy) longest = std::max(longest, time);
  RC_ASSERT(exposed_per_period(plan, workload, cluster) == longest);
}

RC_GTEST_PROP(PartialSgdProperty, TheSolversStallIsTheSimulators, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = serial_cluster();
  const std::string period = random_period();
  const Plan plan = *plan_of("partial_sgd", workload, cluster, {{"period", period}});
  check_averages(plan, workload, cluster);
  const CostModel model(workload, cluster);
  const Packer packer(model, false);
  RC_ASSERT(exposed_per_period(plan, workload, cluster) == equal_number(packer, std::stoul(period)).stall);
}

RC_GTEST_PROP(DreamDdpProperty, TheSolversStallIsTheSimulators, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = serial_cluster();
  const std::string period = random_period();
  const std::string overlap = *rc::gen::element<std::string>("on", "off", "only");
  const std::string fill = *rc::gen::element<std::string>("on", "off");
  const Plan plan = *plan_of("dreamddp", workload, cluster,
                             {{"period", period}, {"fill_bubbles", fill}, {"forward_overlap", overlap}});
  check_averages(plan, workload, cluster);
  // The packing can be later for a link more: the best number of links is taken.
  Nanoseconds stall = std::numeric_limits<Nanoseconds>::max();
  for (Cluster some = cluster; !some.links.empty(); some.links.pop_back()) {
    const CostModel model(workload, some);
    const std::size_t sets = std::stoul(period);
    stall = std::min(stall, overlap == "only" ? plan_after_step(model, sets).stall
                                              : exact_intervals(Packer(model, overlap == "on"), sets).stall);
  }
  RC_ASSERT(exposed_per_period(plan, workload, cluster) == stall);
}

RC_GTEST_PROP(DreamDdpProperty, EachStepBeyondThePaperGainsOrIsFree, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = serial_cluster();
  const std::string period = random_period();
  const auto exposed = [&](std::string_view scheme, Options options) {
    options["period"] = period;
    return exposed_per_period(*plan_of(scheme, workload, cluster, options), workload, cluster);
  };
  const Nanoseconds exact = exposed("dreamddp", {});
  RC_ASSERT(exact <= exposed("partial_sgd", {}));
  RC_ASSERT(exact <= exposed("dreamddp", {{"solver", "dfs"}}));
  RC_ASSERT(exposed("dreamddp", {{"sets", "arbitrary"}, {"search_nodes", "2000"}}) <= exact);
  RC_ASSERT(exposed("dreamddp", {{"forward_overlap", "on"}}) <= exact);
}

// Returns the least stall of a part's layers over all ways to fuse neighbours, on one link, when all are ready.
Nanoseconds least_stall(const CostModel& model, const std::vector<std::size_t>& layers) {
  Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
  for (std::uint32_t cuts = 0; cuts < 1U << (layers.size() - 1); ++cuts) {
    Nanoseconds end = 0, stall = 0;
    for (std::size_t first = 0, i = 0; i < layers.size(); ++i) {
      if (i + 1 < layers.size() && (cuts >> i & 1) == 0) continue;
      std::vector<Slice> slices;
      for (std::size_t l = first; l <= i; ++l) {
        for (std::size_t t = model.index().first_tensor[layers[l]];
             t < model.index().first_tensor[layers[l] + 1]; ++t)
          slices.push_back({t, 0, model.index().tensors[t].numel});
      }
      end += model.all_reduce(0, slices);
      stall = std::max(stall, end - model.index().forward_start[layers[first]]);
      first = i + 1;
    }
    least = std::min(least, stall);
  }
  return least;
}

RC_GTEST_PROP(DreamDdpProperty, AveragesAfterTheStepStallAsLittleAsAnyFusionDoes, ()) {
  const Workload workload = *testing::workloads({.given_times = false, .mixed_dtypes = false});
  Cluster cluster = *testing::clusters({.max_links = 1, .fluid = false});
  const bool rounds = *rc::gen::arbitrary<bool>();  // each message up to a nanosecond
  if (!rounds) cluster.links[0].us_per_byte = {*rc::gen::inRange<std::int64_t>(1, 100), 3};
  const Plan plan =
      *plan_of("dreamddp", workload, cluster, {{"period", random_period()}, {"forward_overlap", "only"}});
  check_averages(plan, workload, cluster);
  const CostModel model(workload, cluster);
  Nanoseconds least = 0;
  for (const Iteration& iteration : plan.period) {
    std::set<std::size_t> layers;
    for (const Op& op : iteration.ops) {
      for (const std::int32_t b : op.blocks)
        layers.insert(model.index().tensors[static_cast<std::size_t>(b)].layer);
    }
    if (!layers.empty()) least += least_stall(model, {layers.begin(), layers.end()});
  }
  const Nanoseconds exposed = exposed_per_period(plan, workload, cluster);
  RC_ASSERT(exposed >= least);
  RC_ASSERT(exposed <= least + (rounds ? static_cast<Nanoseconds>(workload.layers.size()) : 0));
}

RC_GTEST_PROP(DreamDdpProperty, AveragesAfterTheStepAskNothingOfTheLoop, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  const Plan plan =
      *plan_of("dreamddp", workload, cluster,
               {{"period", random_period()}, {"forward_overlap", "only"}, {"compressor", "int4"}});
  check_averages(plan, workload, cluster);
  if (plan.blocks.empty()) return;
  RC_ASSERT(demands_of(plan) == Demands{.local_steps = true});
  RC_ASSERT((effects_of(plan) == std::vector{Effect::kCompressed, Effect::kLocal}));
  RC_ASSERT(simulate(plan, workload, cluster).staleness_max == 0);
}

// Without start-ups one iteration could average everything as local SGD does, only earlier.
RC_GTEST_PROP(DreamDdpProperty, NoWorseThanLocalSgdWithoutStartUps, ()) {
  const Workload workload = *testing::workloads();
  Cluster cluster = *testing::clusters({.max_links = 1, .fluid = false});
  cluster.links[0].startup_ns = 0;
  const Options options{{"period", random_period()}};
  const Nanoseconds slack = 8 * 3;  // each message of local SGD rounds up once, each layer's here
  RC_ASSERT(exposed_per_period(*plan_of("dreamddp", workload, cluster, options), workload, cluster) <=
            exposed_per_period(*plan_of("local_sgd", workload, cluster, options), workload, cluster) + slack);
}

RC_GTEST_PROP(LocalSchemesProperty, FluidLinksRunAndNeverBeatComputation, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  for (const std::string_view scheme : {"local_sgd", "partial_sgd", "dreamddp"}) {
    const Plan plan = *plan_of(scheme, workload, cluster, {{"period", random_period()}});
    check_averages(plan, workload, cluster);
    const SimulationResult result = simulate(plan, workload, cluster);
    RC_ASSERT(result.iteration_ns() >= result.lower_bound.iteration_ns * (1 - 1e-12));
    RC_ASSERT(result.staleness_max == 0);
  }
}

}  // namespace
}  // namespace gradweave
