// Averages of what a whole optimizer step has left, which hide behind the next forward.
#pragma once

#include <cstddef>

#include "gradweave/cost.h"
#include "schemes/dreamddp/plan_of_sets.h"

namespace gradweave {

// Returns the plan in which everything steps at iteration_end. A part of the layers is sent then, in forward order, a different
// one in each of `period` iterations; their averages arrive by forward_start(l) of the next.
//
//   parts  layers in forward order, each to the part of the fewest bytes: so each part has its urgent layers, and all have time
//   e      stall of a part: the least for which each message is through by e + forward_start of its first layer
//
// A message takes as many layers as are through by then, which uses the fewest messages; on one link no other fusion has a
// smaller e, but for rounding (as in US-Byte's second phase). e by bisection. O(layers * links * log time).
PlanWithStall plan_after_step(const CostModel& model, std::size_t period);

}  // namespace gradweave
