// COVAP's arithmetic: everything that the paper computes without a network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradweave/decimal.h"
#include "gradweave/plan.h"

namespace gradweave {

// One row of COVAP's Table I: times of one iteration.
struct CovapTimes {
  Nanoseconds before = 0;         // T_before: data and forward
  Nanoseconds computation = 0;    // T_comp: backward
  Nanoseconds communication = 0;  // T_comm
};

// Returns the communication-to-computation ratio T_comm / T_comp; infinite where T_comp is 0 and T_comm is
// not.
double covap_ccr(const CovapTimes& times);

// Returns T_DP / T_DP-LS, the speed-up of linear scaling over data parallelism without overlap (Eqs. 1 and
// 2).
double covap_linear_scaling_speedup(const CovapTimes& times);

// Returns T_DP / T_ovlp, the speed-up of overlap over none (Eqs. 1 and 4, T'_comm = max(0, T_comm - T_comp)).
double covap_overlap_speedup(const CovapTimes& times);

// Returns P * T_DP-LS / T_ovlp, the speed-up of `workers` workers with overlap over one worker (Eqs. 2 and
// 4).
double covap_overlap_speedup_over_one(const CovapTimes& times, std::int64_t workers);

// Returns the interval I = ceil(CCR), at least 1; a CCR that is above an integer by less than the share
// `uncertainty` of itself counts as that integer: ceil(842 / 210) would be 5 where the paper takes 4. At most
// `most`.
std::int64_t covap_interval(double ccr, double uncertainty, std::int64_t most);

// Returns into how many parts each tensor is cut: floor(numel / median), at least 1, at most `interval`, with
// the true median of `numels` (the mean of the two in the middle). O(n log n).
std::vector<std::int64_t> covap_parts(std::span<const std::int64_t> numels, std::int64_t interval);

// Returns the iteration of 0..interval-1 in which each of `shards` shards is sent: the n with (i + n) % I ==
// 0.
std::vector<std::int32_t> covap_round_robin(std::size_t shards, std::int64_t interval);

// Returns the error-feedback schedule of the authors' code for an interval; off for interval 1, which drops
// nothing.
Residual covap_residual(std::int64_t interval);

}  // namespace gradweave
