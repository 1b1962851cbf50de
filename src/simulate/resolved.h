// A plan checked against workload and cluster, its names resolved: what is the same in every repetition of an
// iteration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradweave/cost.h"
#include "gradweave/plan.h"

namespace gradweave {

// Beyond this the clock of a simulation could overflow.
inline constexpr Nanoseconds kMaxPlanTime = std::int64_t{1} << 60;

struct ResolvedOp {
  std::int32_t link = 0;  // index into Plan::links
  OpCost cost;
  std::int32_t first_layer = 0;  // whose gradient is ready last
};

struct ResolvedPlan {
  std::int64_t prologue = 0, period = 1;
  // No merge or release refers to anything further away than this many iterations; at least 1.
  std::int32_t reach = 1;
  std::vector<std::int32_t> concurrency;     // per plan link
  std::vector<Slice> slices;                 // per plan block
  std::vector<std::vector<ResolvedOp>> ops;  // per iteration as it is listed: prologue, then period

  // Iterations from here on repeat with the period, in what they contain and in what they refer to: from
  // prologue + reach on every merge exists, and references of iterations further on see only such iterations.
  std::int64_t head() const { return prologue + 3 * std::int64_t{reach}; }

  const std::vector<ResolvedOp>& ops_of(std::int64_t n) const {
    return ops[static_cast<std::size_t>(n < prologue ? n : prologue + (n - prologue) % period)];
  }
  const Slice& slice(std::int32_t block) const { return slices[static_cast<std::size_t>(block)]; }
};

// Returns the plan resolved. Errors: InvalidInput naming the part of the plan, for names and indices that
// don't exist, and for a plan that is too long to be unrolled. O(size of the plan).
ResolvedPlan resolve(const Plan& plan, const CostModel& model);

// Returns whether an op or apply listed in iteration n exists: merges are intersected with the iterations
// that do.
bool exists(const std::vector<std::int32_t>& merges, std::int64_t n);

}  // namespace gradweave
