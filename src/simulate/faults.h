// What closed forms and simulations of faults share.
#pragma once

#include <algorithm>

#include "gradweave/goodput.h"

namespace gradweave {

// Errors: InvalidInput naming the first value that is out of range.
void check(const Faults& faults);
void check(const IslandTraining& training);
void check(const CheckpointTraining& training);

inline constexpr double kDaySeconds = 86400;

// From a death until who died is there again: not before the others know of it.
inline double away_s(const Faults& faults) { return std::max(faults.recovery_s, faults.detection_s); }

// From one average's beginning to that of the next, while nobody dies.
inline double cycle_s(const IslandTraining& training) {
  return std::max(training.average_s, static_cast<double>(training.period) * training.step_s);
}

}  // namespace gradweave
