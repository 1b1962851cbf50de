// Spreading costs evenly over bins: minimum makespan on identical machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradweave {

struct Balance {
  std::vector<std::int32_t> bin;  // per item
  std::int64_t largest = 0;       // sum of the fullest bin
  bool proven = true;             // false: the node limit ended the search and `bin` is the best found
};

// Returns an assignment of items of the given costs (>= 0) to `bins` >= 1 bins that minimises the fullest bin
// and leaves no bin empty if there are as many items: longest processing time first (R. Graham, 1969: at most
// 4/3 - 1/(3 bins) of the optimum), then branch and bound until `node_limit` nodes. O(items log items + items
// * bins) and the search. Deterministic.
Balance balance(std::span<const std::int64_t> costs, std::size_t bins, std::int64_t node_limit);

}  // namespace gradweave
