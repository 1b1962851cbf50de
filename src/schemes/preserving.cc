#include <algorithm>
#include <cmath>
#include <utility>

#include "gradweave/preserve.h"
#include "gradweave/ranked_plans.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"

namespace gradweave {
namespace {

constexpr int kRetries = 10;  // DeFT's

Workload with_longer_compute(Workload workload, double factor) {
  const auto longer = [&](Nanoseconds& time) { time = std::llround(static_cast<double>(time) * factor); };
  for (Layer& layer : workload.layers) {
    longer(layer.forward_ns);
    longer(layer.backward_ns);
  }
  return workload;
}

// What an iteration's communication takes of what its compute takes, at least 1.
double coverage_rate(const Workload& workload, const Cluster& cluster) {
  Nanoseconds compute = 0;
  for (const Layer& layer : workload.layers) compute += layer.forward_ns + layer.backward_ns;
  const PlanResult alone = make_plan("sequential", workload, cluster);
  const double whole =
      simulate(std::get<Plan>(alone), workload, cluster, {.plan_facts = false}).iteration_ns();
  return compute == 0 ? 1 : std::max(1.0, whole / static_cast<double>(compute) - 1);
}

}  // namespace

std::variant<PreservingPlan, Infeasible> make_preserving_plan(const Workload& workload,
                                                              const Cluster& cluster,
                                                              const SchemeOptions& options,
                                                              const Measurements& measurements,
                                                              const Tolerance& tolerance) {
  PreservingPlan found;
  const auto keeps = [&](Plan&& plan) {
    // What is planned for longer compute is as right a plan of the workload.
    plan.workload_hash = hash_of(workload);
    found.plan = std::move(plan);
    found.judgement = judge(found.plan, workload, measurements, tolerance);
    return found.judgement.preserves();
  };
  const double most = coverage_rate(workload, cluster);
  for (int retry = 0; retry <= kRetries && (retry == 0 || most > 1); ++retry) {
    found.capacity = std::pow(most, static_cast<double>(retry) / kRetries);
    ++found.attempts;
    PlanResult result = make_plan(with_longer_compute(workload, found.capacity), cluster, options);
    if (const Infeasible* infeasible = std::get_if<Infeasible>(&result)) {
      if (retry == 0) return *infeasible;
      continue;
    }
    if (keeps(std::get<Plan>(std::move(result)))) return found;
  }
  found.capacity = 1;
  found.exact_instead = true;
  PlanResult exact = make_plan(kAuto, workload, cluster);
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&exact)) return *infeasible;
  keeps(std::get<Plan>(std::move(exact)));
  return found;
}

}  // namespace gradweave
