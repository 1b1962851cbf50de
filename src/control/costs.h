// What messages take, and what else an iteration does.
#pragma once

#include <optional>
#include <utility>

#include "gradweave/cluster.h"
#include "gradweave/effects.h"
#include "gradweave/plan.h"
#include "gradweave/simulate.h"

namespace gradweave::control {

// On an accelerator averages of what parameters have gained are staged in the processor's memory: they travel over other
// groups, and the processor encodes them.
struct Costs {
  Cluster usual;
  std::optional<Cluster> staged =
      std::nullopt;  // with the same links. None: no plan of the job has them, or they cost as usual
  // What an iteration takes besides layers and messages: optimizer_ns, of the optimizer and the rest of the loop; contention;
  // burst_ns, of the links.
  SimulationOptions overheads = {};

  // Returns what the messages of a plan take. O(its size).
  const Cluster& of(const Plan& plan) const { return staged && averages_gains(plan) ? *staged : usual; }
  // Returns the same, but that those of such a plan take what `cluster` says.
  Costs with(const Plan& plan, Cluster cluster) const {
    Costs costs = *this;
    (staged && averages_gains(plan) ? *costs.staged : costs.usual) = std::move(cluster);
    return costs;
  }
};

}  // namespace gradweave::control
