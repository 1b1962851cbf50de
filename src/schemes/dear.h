// DeAR's closed forms: what decoupled all-reduce can gain at best.
#pragma once

#include <cstdint>

namespace gradweave {

// Times of one iteration, in any one unit: t_ff, t_bp, t_rs, t_ag.
struct DearTimes {
  double forward = 0;
  double backward = 0;
  double reduce_scatter = 0;
  double all_gather = 0;
};

// Each returns the quantity of the equation of that number in L. Zhang et al., "DeAR", ICDCS 2023.
// S_max, the largest speed-up over one worker that any overlap can reach (Eq. 6).
double dear_max_speedup(std::int64_t workers, const DearTimes& times);
// The iteration under perfect overlap: DeAR's (Eq. 7) and that of backward overlap alone (Eq. 8).
double dear_ideal_iteration(const DearTimes& times);
double baseline_ideal_iteration(const DearTimes& times);
// Eq. 8 - Eq. 7 where t_rs = t_ag and t_bp = 2 t_ff (Eq. 9).
double dear_ideal_gain(double forward, double all_gather);

}  // namespace gradweave
