// What the local-step schemes with synchronisation have in common: the plan of a list of sets, and the option
// `period`.
#pragma once

#include "gradweave/plan.h"
#include "gradweave/schemes.h"
#include "schemes/compressed.h"
#include "solve/intervals.h"

namespace gradweave {

inline constexpr std::int64_t kDefaultPeriod = 5;  // H

// The options of schemes that have no others than a period.
struct PeriodOptions {
  std::int64_t period = kDefaultPeriod;
  AverageOptions averages;
};

struct PlanWithStall {
  Plan plan;
  Nanoseconds stall = 0;  // by which a period grows, if links serve one op after another
};

// Returns the row of the option `period`.
OptionSpec period_option();

// Returns the plan that averages in iteration h of the period the parameters of the layers in sets[h], as
// packed into messages by `packer`. A layer that is sent makes its local step at backward_end(l), and its
// message is released there; the other layers step at iteration_end. Averages replace parameters at
// iteration_end or, with forward overlap, at forward_start(l) of the next iteration.
Plan plan_of_sets(const CostModel& model, const Packer& packer, const Assignment& assignment,
                  bool forward_overlap);

}  // namespace gradweave
