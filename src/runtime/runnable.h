// What the engine can't run of valid plans.
#pragma once

#include <c10/core/Device.h>

#include "plan/run_plan.h"

namespace gradweave::runtime {

// Returns the plan that validate() accepts, for parameters on `device`; `bytes` of what it compresses
// are those on the wire among `world_size` ranks. Errors: InvalidInput naming what the engine can't run, before
// anything is trained.
RunPlan runnable_plan(const Plan& plan, const Workload& workload, int world_size, c10::Device device);

}  // namespace gradweave::runtime
