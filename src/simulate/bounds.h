// Lower bounds on the iteration time of a plan.
#pragma once

#include <vector>

#include "gradweave/simulate.h"
#include "simulate/program.h"

namespace gradweave {

// Returns the bounds that hold for `plan`, in this order:
//   compute        of the slowest class of workers, optimizer included
//   link NAME      its work per iteration; start-up counts only where ops can't overlap
//   all links      the work without start-up, spread over the links at will (where there are several); of two
//                  levels each is spread over its own links
//   critical path  where results are applied at forward_start: per link, ops between one backward_start and
//                  the next as jobs with a head (gradient ready, of two levels the steps before) and a tail (the
//                  steps after, forward still to do), preemption allowed. With one op for each layer this is
//                    max_l (ready(l) + sum_{k<=l} c_k + sum_{j>=l} f_j)
// `program` is the plan's. O(ops log ops + blocks).
std::vector<Bound> lower_bounds(const ResolvedPlan& plan, const Program& program, const CostModel& model,
                                const Workload& slowest, Nanoseconds compute_ns);

}  // namespace gradweave
