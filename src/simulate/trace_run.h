// A simulated run as a Timeline.
#pragma once

#include <cstdint>
#include <span>

#include "gradweave/cost.h"
#include "gradweave/simulate.h"
#include "plan/compiled_plan.h"

namespace gradweave {

// Returns the timeline of iterations [begin, begin + count) with every op that is under way in them; the
// first span begins at 0. `shared`: ops share links, or busy links slow compute.
Timeline record_timeline(const CompiledPlan& plan, std::span<const Workload> classes, const CostModel& model,
                         const SimulationOptions& options, bool shared, std::int64_t begin,
                         std::int64_t count);

}  // namespace gradweave
