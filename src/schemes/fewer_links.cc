#include "schemes/fewer_links.h"

#include <optional>
#include <variant>

#include "gradweave/simulate.h"
#include "schemes/compressed.h"

namespace gradweave {

PlanResult fastest_over_links(const Workload& workload, const Cluster& cluster,
                              const std::function<PlanResult(const Cluster&)>& plan,
                              const Compression& compression) {
  __extension__ using Wide = __int128;
  PlanResult best = plan(cluster);
  if (cluster.links.size() == 1) return best;
  const auto simulated = [&](const PlanResult& result) {
    SimulationOptions options;
    options.plan_facts = false;
    Plan compressed = std::get<Plan>(result);
    compress_gradients(compressed, compression);
    return simulate(compressed, workload, cluster, options);
  };
  std::optional<SimulationResult> least;
  if (std::holds_alternative<Plan>(best)) least = simulated(best);
  Cluster fewer = cluster;
  while (fewer.links.size() > 1 && !(least && least->exposed_ns == 0)) {
    fewer.links.pop_back();
    PlanResult other = plan(fewer);
    if (!std::holds_alternative<Plan>(other)) continue;
    const SimulationResult time = simulated(other);
    if (least &&
        Wide{time.cycle_ns} * least->cycle_iterations >= Wide{least->cycle_ns} * time.cycle_iterations)
      continue;
    least = time;
    best = std::move(other);
  }
  return best;
}

}  // namespace gradweave
