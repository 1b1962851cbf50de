// Plans that would wait for ever.
#pragma once

#include "plan/calendar.h"

namespace gradweave::run {

// Refuses a plan of which a run would wait for an op whose data, or that of an op before it on its link (`ordered`:
// on any link), comes after the wait. The simulator steps and waits at an iteration's end in the plan's order; a run
// waits for all reduced gradients of an iteration before its first step, which is the user's. Errors: InvalidInput.
// O(the calendar).
void check_waits(const Calendar& calendar, bool ordered);

}  // namespace gradweave::run
