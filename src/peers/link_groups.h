// Which ranks of a job train the same part of a model, where its parameters are sharded inside islands.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace gradweave::peers {

// What a rank holds.
struct Holding {
  std::vector<int> with;  // ranks that it shards parameters with
  std::string part;       // which part of them is its own, alike on all ranks that hold the same
};

// Returns for each rank those that hold its part, one of each island, ascending, itself among them. An island: ranks that shard
// with each other, perhaps by way of others. Errors: InvalidInput where all ranks are one island, where islands differ, and where
// two ranks of one hold the same part. O(ranks^2).
std::vector<std::vector<int>> link_groups(std::span<const Holding> ranks);

}  // namespace gradweave::peers
