// Several knapsacks filled with items that may become available late: the subproblem of delayed
// communication.
//
// A knapsack is a link during [open, close); an item is an op that takes `time[k]` on link k and whose data
// exist at `ready`. A set of items fits a knapsack iff, served in order of `ready` from `open` on, it ends by
// `close`; no other order of the same set ends earlier (earliest release first is optimal for one machine's
// makespan). With every `ready` at or before `open` this is the 0/1 multi-knapsack problem of DeFT (L. Meng
// and Y. Sun, Problem 2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradweave {

struct KnapsackItem {
  std::int64_t value = 0;              // >= 0: what placing it is worth
  std::int64_t ready = 0;              // not before
  std::span<const std::int64_t> time;  // >= 0, one for each knapsack
};

struct Knapsack {
  std::int64_t open = 0;
  std::int64_t close = 0;
};

inline constexpr std::int32_t kLeftOut = -1;

// For each item the index of its knapsack, or kLeftOut.
using Placement = std::vector<std::int32_t>;

// Returns the total value of the placed items. O(items).
std::int64_t value_of(std::span<const KnapsackItem> items, const Placement& placement);

// The contents of one knapsack, kept in order of (ready, order of insertion).
class KnapsackSchedule {
 public:
  struct Entry {
    std::int64_t ready = 0;
    std::int64_t time = 0;
    std::size_t item = 0;
  };

  explicit KnapsackSchedule(Knapsack knapsack) : knapsack_(knapsack) {}

  // Returns when the contents end if `entry` joins them. O(contents).
  std::int64_t end_with(const Entry& entry) const;
  // Adds the entry if it then still ends by `close`, and returns whether it did. O(contents).
  bool insert(const Entry& entry);
  // Takes out the entry of `item`, which must be there. O(contents).
  void remove(std::size_t item);

  // When the contents end; `open` if there are none.
  std::int64_t end() const;
  // Time that no entry takes, idle time between entries included.
  std::int64_t left() const { return knapsack_.close - knapsack_.open - total_; }
  // The contents in the order in which they are served.
  const std::vector<Entry>& entries() const { return entries_; }
  const Knapsack& knapsack() const { return knapsack_; }

 private:
  Knapsack knapsack_;
  std::int64_t total_ = 0;
  std::vector<Entry> entries_;
};

// Returns the greedy placement of DeFT, section III.C: knapsacks in the order given (the paper: smallest
// capacity first), into each the items in the order given (the paper: longest first) that still fit.
// O(knapsacks * items * contents).
Placement fill_greedy(std::span<const KnapsackItem> items, std::span<const Knapsack> knapsacks);

struct ExactFill {
  Placement placement;
  bool proven = true;  // false: the node limit ended the search and `placement` is the best found
};

// Returns a placement of the greatest value: branch and bound, seeded with fill_greedy(), items in the order
// given (falling value prunes most). The bound on what a partial placement can still gain is the smaller of
// the value left and sum over knapsacks of left() times the best value per time. Exponential; ends after
// `node_limit` nodes. Deterministic.
ExactFill fill_exact(std::span<const KnapsackItem> items, std::span<const Knapsack> knapsacks,
                     std::int64_t node_limit);

}  // namespace gradweave
