// The best order, fusion and assignment to links of one iteration's messages, by branch and bound.
//
// One machine with heads and tails and its preemptive bound: J. Carlier, "The one-machine sequencing
// problem", 1982; unrelated machines and fusion make it harder, so it is for a handful of units.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradweave/cost.h"

namespace gradweave {

// One op of a schedule. Times count from the start of backward.
struct OrderedOp {
  enum class Kind : std::uint8_t { kAllReduce, kReduceScatter, kAllGather };
  Kind kind = Kind::kAllReduce;
  std::size_t link = 0;
  std::uint32_t units = 0;  // bit u: units[u] is in the message
  friend bool operator==(const OrderedOp&, const OrderedOp&) = default;
};

struct OrderSearchResult {
  std::vector<OrderedOp> ops;  // in order of their starts; empty if nothing better than the limit was found
  Nanoseconds iteration = 0;   // steady state of `ops`, or the limit
  std::int64_t nodes = 0;
  bool complete = false;  // no schedule of this kind is shorter than `iteration`
};

inline constexpr std::size_t kMaxOrderUnits = 12;

// Searches all schedules without staleness and with forward overlap in which
//   - a message is any set of units of one dtype, sent by one all-reduce, or by a reduce-scatter and, any
//     time later on the same link, its all-gather;
//   - each link serves one op at a time, in any order; an op starts as soon as its link and its data allow;
//   - layer l's next forward waits for the messages that hold units of layer l.
//   iteration = max(T_b + T_f, max over messages g of end(g) + sum of t_f(j) for j >= first layer of g)
// for one shorter than `limit`, from the start of backward to the next. Stops after `max_nodes` nodes, then
// `complete` is false. Deterministic. `units`: slices that partition the model, at most kMaxOrderUnits of
// them. O(nodes * (units + links)) time, O(2^units * links * units) memory.
OrderSearchResult search_order(const CostModel& model, const std::vector<Slice>& units, Nanoseconds limit,
                               std::int64_t max_nodes);

}  // namespace gradweave
