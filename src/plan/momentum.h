// Whose momentum a plan trains with.
#pragma once

#include "gradweave/plan.h"

namespace gradweave {

// Returns whether a compressor of the plan sends momentum, so that the optimizer must have none of its own. The caller
// owes a valid plan. O(ops).
bool makes_momentum(const Plan& plan);

}  // namespace gradweave
