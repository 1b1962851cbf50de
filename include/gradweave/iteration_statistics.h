// How long the parts of some iterations of a plan took, on one rank or all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gradweave {

// What was measured of some successive iterations of a plan.
struct IterationStatistics {
  std::int64_t first = 0;       // of the plan: the first of the iterations
  std::int64_t iterations = 0;  // how many
  // Whether all times have come: a device may be further behind than the host has left it.
  bool whole = true;
  // Of each op of these iterations, in the order of their lists, from its start to its end; 0: it was not run. A
  // collective ends everywhere once the last rank has come to it, so that the rank that comes last, whose time is the
  // shortest, saw the communication alone (COVAP, section III.B).
  std::vector<double> op_ns;
  // Of as many iterations that ended last: medians of compute, without waits and updates, scaled so that they add up to
  // the median iteration's; means of what differs between iterations of a plan.
  std::vector<double> backward_ns;  // by layer
  double forward_ns = 0;
  double exposed_ns = 0;  // waits
  // From one step to the next. Of what comes before the forward, where loops pause to evaluate or to save, the median counts.
  double iteration_ns = 0;
  // By rank: forward and backward. Of one rank's sample, the others' are infinite.
  std::vector<double> compute_ns;
};

// Returns a sample as numbers, of which the ranks have to take the smallest one by one.
std::vector<double> to_numbers(const IterationStatistics& sample);
// Returns the sample of all ranks: ops of the rank that came last, compute of the slowest. `shape`: any rank's own.
IterationStatistics from_numbers(std::span<const double> numbers, const IterationStatistics& shape);

}  // namespace gradweave
