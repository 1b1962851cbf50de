// What tests measure of a plan without simulating it.
#pragma once

#include <vector>

#include "gradweave/cost.h"
#include "gradweave/plan.h"

namespace gradweave::testing {

// Returns, for each iteration of the period, the time of its ops as all-reduces, one after another, on the
// first link.
std::vector<Nanoseconds> communication_times(const Plan& plan, const CostModel& model);

}  // namespace gradweave::testing
