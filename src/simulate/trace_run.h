// A simulated run as a Timeline.
#pragma once

#include <cstdint>
#include <span>

#include "gradweave/cost.h"
#include "gradweave/simulate.h"

namespace gradweave {

// Returns the timeline of the plan's prologue and of options.timeline_iterations iterations from `begin` on, with
// every op that is under way in them; the first span begins at 0. `shared`: links share or compute is slowed.
Timeline record_timeline(const Plan& plan, std::span<const Workload> classes, const CostModel& model,
                         const SimulationOptions& options, bool shared, std::int64_t begin);

}  // namespace gradweave
