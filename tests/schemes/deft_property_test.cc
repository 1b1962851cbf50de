// What DeFT promises, on random workloads and clusters: every gradient once, two generations, hidden
// communication.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "schemes/deft/deft.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

using Options = std::map<std::string, std::string>;

Options random_options() {
  Options options = {{"solver", *rc::gen::element<std::string>("greedy", "exact", "search")}};
  if (*rc::gen::arbitrary<bool>()) options["correction"] = "local";
  if (*rc::gen::inRange(0, 3) == 0) options["max_block_us"] = std::to_string(*rc::gen::inRange(1, 30'000));
  return options;
}

bool delays(const Plan& plan) {
  const auto& applies = plan.period.back().applies;
  const auto late = [](const Apply& apply) { return apply.at.kind == PointKind::kIterationEnd; };
  return std::ranges::any_of(plan.period,
                             [&](const Iteration& i) { return std::ranges::any_of(i.applies, late); }) ||
         (!applies.empty() && late(applies.back()));
}

// Draws a plan that delays; nothing if the draw is infeasible or needs no delay.
std::optional<Plan> delayed_plan(const Workload& workload, const Cluster& cluster, const Options& options) {
  PlanResult result = make_plan("deft", workload, cluster, options);
  const Plan* plan = std::get_if<Plan>(&result);
  RC_CLASSIFY(plan == nullptr, "infeasible");
  RC_CLASSIFY(plan != nullptr && !delays(*plan), "without delay");
  if (plan == nullptr || !delays(*plan)) return std::nullopt;
  return *plan;
}

RC_GTEST_PROP(DeftProperty, PlansAreValid, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  const PlanResult result = make_plan("deft", workload, cluster, random_options());
  const Plan* plan = std::get_if<Plan>(&result);
  if (plan == nullptr) return;
  RC_LOG() << to_json(*plan);
  const Validation validation = validate(*plan, workload, &cluster);
  for (const Violation& violation : validation.violations)
    RC_LOG() << violation.what << " at " << violation.where << "\n";
  RC_ASSERT(validation.valid());
  RC_ASSERT(validation.facts.generations_alive <= 2);
}

// The life of every gradient over some iterations, kept by block and absolute iteration.
struct Ledger {
  std::map<std::int32_t, std::map<std::int64_t, int>> reduced, applied;
  std::size_t most_alive = 0;  // generations of one block at an iteration's end, before its applies
  std::int64_t longest_delay = 0;
  std::int64_t updates = 0;
};

Ledger follow(const Plan& plan, std::int64_t iterations) {
  Ledger ledger;
  std::map<std::int32_t, std::set<std::vector<std::int64_t>>>
      sent;  // generations reduced and not yet applied
  const auto absolute = [](const std::vector<std::int32_t>& merges, std::int64_t n) {
    std::vector<std::int64_t> result;
    for (const std::int32_t i : merges) {
      if (n + i >= 0) result.push_back(n + i);
    }
    return result;
  };
  for (std::int64_t n = 0; n < iterations; ++n) {
    const Iteration& iteration = iteration_at(plan, n);
    for (const Op& op : iteration.ops) {
      const std::vector<std::int64_t> generation = absolute(op.merges, n);
      if (generation.empty()) continue;
      for (const std::int32_t b : op.blocks) {
        sent[b].insert(generation);
        for (const std::int64_t i : generation) ++ledger.reduced[b][i];
      }
    }
    for (std::int32_t b = 0; b < static_cast<std::int32_t>(plan.blocks.size()); ++b) {
      std::size_t waiting = 0;  // iterations that no op has carried yet are one generation
      for (std::int64_t i = 0; i <= n && waiting == 0; ++i) waiting = ledger.reduced[b].contains(i) ? 0 : 1;
      ledger.most_alive = std::max(ledger.most_alive, sent[b].size() + waiting);
    }
    bool updated = false;
    for (const Apply& apply : iteration.applies) {
      if (apply.source != Source::kReducedGradient) continue;
      const std::vector<std::int64_t> generation = absolute(apply.merges, n);
      if (generation.empty()) continue;
      updated = true;
      for (const std::int32_t b : apply.blocks) {
        RC_ASSERT(sent[b].erase(generation) == 1U);
        for (const std::int64_t i : generation) {
          ++ledger.applied[b][i];
          ledger.longest_delay = std::max(ledger.longest_delay, n - i);
        }
      }
    }
    ledger.updates += updated ? 1 : 0;
  }
  return ledger;
}

std::int64_t longest_gap_between_updates(const Plan& plan) {
  const auto period = static_cast<std::int64_t>(plan.period.size());
  std::int64_t longest = 0;
  std::int64_t last = -1;
  for (std::int64_t n = 0; n < 2 * period; ++n) {
    const auto& applies = plan.period[static_cast<std::size_t>(n % period)].applies;
    if (std::ranges::none_of(applies, [](const Apply& a) { return a.source == Source::kReducedGradient; }))
      continue;
    if (last >= 0) longest = std::max(longest, n - last);
    last = n;
  }
  return longest;
}

std::int64_t length(const Plan& plan) {
  return static_cast<std::int64_t>(plan.prologue.size() + plan.period.size());
}

RC_GTEST_PROP(DeftProperty, EveryGradientIsReducedOnceAndAppliedOnceInTime, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  const std::optional<Plan> plan = delayed_plan(workload, cluster, random_options());
  if (!plan || length(*plan) > 200) return;
  const std::int64_t bound = 2 * longest_gap_between_updates(*plan) - 1;
  const std::int64_t iterations = length(*plan) + static_cast<std::int64_t>(plan->period.size()) + bound;
  const Ledger ledger = follow(*plan, iterations);
  RC_ASSERT(ledger.longest_delay <= bound);
  RC_ASSERT(ledger.most_alive <= 2U);
  for (std::int32_t b = 0; b < static_cast<std::int32_t>(plan->blocks.size()); ++b) {
    for (std::int64_t i = 0; i < iterations; ++i) {
      const bool due = i + bound < iterations;
      for (const auto* counts : {&ledger.reduced, &ledger.applied}) {
        const auto& of_block = counts->at(b);
        const int count = of_block.contains(i) ? of_block.at(i) : 0;
        RC_ASSERT(count <= 1);
        RC_ASSERT(!due || count == 1);
      }
    }
  }
}

RC_GTEST_PROP(DeftProperty, NothingIsExposedOnSerialLinks, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters({.fluid = false});
  const std::optional<Plan> plan = delayed_plan(workload, cluster, random_options());
  if (!plan) return;
  const SimulationResult result = simulate(*plan, workload, cluster);
  RC_ASSERT(result.steady);
  RC_ASSERT(result.cycle_ns == result.cycle_iterations * result.compute_ns);
  for (const LinkUse& link : result.links) RC_ASSERT(link.use <= 1.0);
  RC_ASSERT(result.updates_per_iteration <= 1.0);
}

RC_GTEST_PROP(DeftProperty, UpdateRateIsWithinTheLinksCapacity, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters({.fluid = false});
  const CostModel model(workload, cluster);
  const std::optional<DeftProblem> problem = deft_problem(model, model.link_count(), std::nullopt);
  if (!problem) return;
  for (const DeftSchedule& schedule : {deft_knapsacks(*problem, DeftFill::kGreedy),
                                       deft_knapsacks(*problem, DeftFill::kExact), deft_search(*problem)}) {
    if (schedule.updates() == 0) continue;
    const double rate = static_cast<double>(schedule.updates()) / static_cast<double>(schedule.period.size());
    RC_ASSERT(rate <= 1.0);
    RC_ASSERT(rate * problem->least_iterations() <= 1.0 + 1e-9);
  }
}

RC_GTEST_PROP(DeftProperty, PlanWithoutDelayTakesTheTimeItClaims, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters({.fluid = false});
  const CostModel model(workload, cluster);
  const std::optional<DeftProblem> problem = deft_problem(model, model.link_count(), std::nullopt);
  if (!problem) return;
  const DeftPrompt prompt = deft_prompt(model, *problem);
  const SimulationResult result = simulate(deft_prompt_plan(model, *problem, prompt), workload, cluster);
  RC_ASSERT(result.cycle_ns == result.cycle_iterations * prompt.iteration);
  RC_ASSERT(result.staleness_max == 0);
}

RC_GTEST_PROP(DeftProperty, IsNeverSlowerThanEachTensorAsItGetsReady, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters({.max_links = 1, .fluid = false});
  const PlanResult deft = make_plan("deft", workload, cluster);
  const Plan* plan = std::get_if<Plan>(&deft);
  RC_ASSERT(plan != nullptr);
  const double ours = simulate(*plan, workload, cluster).iteration_ns();
  const double theirs =
      simulate(std::get<Plan>(make_plan("wfbp", workload, cluster)), workload, cluster).iteration_ns();
  RC_ASSERT(ours <= theirs);
}

}  // namespace
}  // namespace gradweave
