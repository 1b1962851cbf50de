// The parts of the DeFT planner: pieces, schedules of generations, and the cycles that repeat for ever.
//
// Inside these files links are numbered by their place in DeftProblem::links, iterations relative to the one
// that lists an op, and times from the start of that iteration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gradweave/cost.h"
#include "schemes/common.h"

namespace gradweave {

// One op's worth of gradients: DeFT's bucket after re-partition.
struct DeftPiece {
  Message message;
  std::int32_t layer = 0;         // the one whose backward_end completes the gradient
  Nanoseconds ready = 0;          // backward_end of that layer
  std::vector<Nanoseconds> time;  // per link
};

// What is to be scheduled: items and knapsacks.
struct DeftProblem {
  Nanoseconds forward = 0;    // T_f
  Nanoseconds iteration = 0;  // T_f + T_b
  std::vector<std::size_t>
      links;  // the cluster's links in use, smallest knapsack first: the fastest is the last
  std::vector<DeftPiece> pieces;  // longest first, by the time on the fastest link
  bool serial = true;             // each of them serves one op at a time

  Nanoseconds value(std::size_t piece) const { return pieces[piece].time.back(); }
  // Returns a lower bound on the iterations that sending every piece once takes, all links busy all the time:
  // sum of values / sum over links of T * (the greatest value per time on that link). Infinite where T is 0.
  // O(pieces * links).
  double least_iterations() const;
};

// A generation that takes longer to send than this is not worth its delay: no schedule is made.
inline constexpr double kMostIterationsPerGeneration = 128;

// Iterations first..last, both included, relative and <= 0: those whose gradients are merged before being
// reduced.
struct Generation {
  std::int64_t first = 0;
  std::int64_t last = 0;
  friend auto operator<=>(const Generation&, const Generation&) = default;
};

struct DeftOp {
  std::int32_t piece = 0;
  std::int32_t link = 0;
  Nanoseconds start = 0;  // < DeftProblem::iteration
  Generation generation;
};

struct DeftIteration {
  std::vector<DeftOp> ops;            // in order of (start, link)
  std::optional<Generation> applied;  // at the end of this iteration
};

// A schedule under which no iteration ever waits: `prologue`, then `period` for ever.
struct DeftSchedule {
  std::vector<DeftIteration> prologue, period;

  std::int64_t updates() const;  // per period; 0: nothing is ever updated
  // Returns the mean number of iterations from computing a gradient to applying it, over one period.
  // O(period).
  double mean_delay() const;
};

// pieces.cc. Returns the problem that uses the `link_count` fastest links, with pieces that take at most
// `limit` on the fastest of them (nothing: T_f on the slowest, the paper's rule). Consecutive tensors are
// fused until their start-ups no longer matter, or not at all. Nothing, if even one element takes longer than
// the limit, or more than kMaxDeftPieces pieces beyond one for each tensor would be needed. O(tensors +
// pieces log pieces).
inline constexpr std::size_t kMaxDeftPieces = 2'048;
enum class DeftFusion : std::uint8_t { kOn, kOff };
std::optional<DeftProblem> deft_problem(const CostModel& model, std::size_t link_count,
                                        std::optional<Nanoseconds> limit,
                                        DeftFusion fusion = DeftFusion::kOn);

// How the knapsacks of Algorithm 2 are filled.
enum class DeftFill : std::uint8_t { kGreedy, kExact };

// knapsacks.cc. Returns the schedule of the corrected Algorithm 2; an empty one if it never updates.
// O(iterations until the state repeats * cost of a knapsack).
DeftSchedule deft_knapsacks(const DeftProblem& problem, DeftFill fill);

// search.cc. Returns the schedule with the most updates per iteration that the search finds, ops being
// carried across the ends of iterations; an empty one if there are too many pieces to search.
DeftSchedule deft_search(const DeftProblem& problem);

// One piece served by a link during [start, end).
struct DeftService {
  std::size_t piece = 0;
  std::size_t link = 0;
  Nanoseconds start = 0;
  Nanoseconds end = 0;
};

// A schedule without delay: every layer's forward waits just for its own gradients of the iteration before.
struct DeftPrompt {
  std::vector<DeftService> order;  // by start, from the start of the iteration that computes the gradients
  Nanoseconds iteration = 0;       // its time, on links that serve one op at a time
};

// prompt.cc. Returns the schedule in which each link serves the waiting piece that the next forward
// needs first. O(layers + pieces * (links + log pieces)).
DeftPrompt deft_prompt(const CostModel& model, const DeftProblem& problem);
// Returns its plan.
Plan deft_prompt_plan(const CostModel& model, const DeftProblem& problem, const DeftPrompt& prompt);

}  // namespace gradweave
