// Slices sent by priority under a credit: the dynamic rule of P3 and ByteScheduler, run on the profile.
#pragma once

#include <cstdint>
#include <vector>

#include "gradweave/cost.h"
#include "schemes/schedule.h"

namespace gradweave {

enum class Partition {
  kFixed,  // slices of partition_bytes, the rest last
  kEven,   // the fewest slices of at most partition_bytes, as equal as elements allow
};

// Returns the slices of all tensors, the most urgent first: forward order, then place in the tensor.
// Errors: InvalidInput if there would be more than kMaxSlices.
std::vector<Slice> priority_slices(const CostModel& model, std::int64_t partition_bytes, Partition partition);
inline constexpr std::int64_t kMaxSlices = 1'000'000;

// Returns the ops in the order in which the rule issues them on the profile: whenever something becomes ready
// or ends, issue the most urgent ready slice, again and again, as long as its link has credit left. An issued
// slice takes its bytes off the link's credit until it has ended; a link that has any credit left may issue a
// slice of any size, so credit_bytes = 1 means one slice at a time. The link is the one on which the slice
// would end first; while that has no credit, the slice waits. O(slices * (log slices + links)).
std::vector<ScheduledOp> issue_by_priority(const CostModel& model, const std::vector<Slice>& slices,
                                           std::int64_t credit_bytes);

// Returns how many slices of `partition_bytes` the credit lets be in flight at once: the plan's concurrency
// on shared links.
std::int64_t slices_in_flight(std::int64_t partition_bytes, std::int64_t credit_bytes);

}  // namespace gradweave
