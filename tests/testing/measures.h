// What tests measure of a plan.
#pragma once

#include <vector>

#include "gradweave/cost.h"
#include "gradweave/observe.h"
#include "gradweave/plan.h"

namespace gradweave::testing {

// Returns, for each iteration of the period, the time of its ops as all-reduces, one after another, on the
// first link.
std::vector<Nanoseconds> communication_times(const Plan& plan, const CostModel& model);

// Returns what a job of four ranks whose links are `real` would show of so many iterations: op times of its simulated
// timeline, and `compute` times the workload's.
IterationStatistics statistics_of(const Plan& plan, const Workload& workload, const Cluster& real,
                                  double compute, std::int64_t iterations = 10);

}  // namespace gradweave::testing
