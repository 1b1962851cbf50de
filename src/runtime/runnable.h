// What the engine can't run of valid plans.
#pragma once

#include "plan/calendar.h"

namespace gradweave::runtime {

// Returns the calendar of a plan that validate() accepts. Errors: InvalidInput naming what the engine can't
// run, before anything is trained.
Calendar runnable_calendar(const Plan& plan, const Workload& workload);

}  // namespace gradweave::runtime
