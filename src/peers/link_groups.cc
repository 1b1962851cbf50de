#include "peers/link_groups.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

#include "gradweave/error.h"

namespace gradweave::peers {
namespace {

constexpr const char* kWhere = "gradweave.wrap";
constexpr const char* kAlike =
    "shard every island alike, over the ranks of one mesh dimension or more of one device mesh";

std::string text_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : " ") + std::to_string(rank);
  return text;
}

// Returns for each rank the smallest of its island.
std::vector<int> islands_of(std::span<const Holding> ranks) {
  std::vector<int> first(ranks.size());
  std::iota(first.begin(), first.end(), 0);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const int other : ranks[r].with) {
      if (other < 0 || static_cast<std::size_t>(other) >= ranks.size()) {
        throw InvalidInput(
            "rank " + std::to_string(r) + " shards parameters with ranks outside its plan_group", kWhere,
            "give a plan_group of all ranks that hold a part of this model");
      }
      const auto [to, from] = std::minmax(first[r], first[static_cast<std::size_t>(other)]);
      if (to != from) std::ranges::replace(first, int{from}, int{to});
    }
  }
  return first;
}

}  // namespace

std::vector<std::vector<int>> link_groups(std::span<const Holding> ranks) {
  std::map<int, std::map<std::string, int>> islands;  // by smallest rank: part, rank that holds it
  std::map<std::string, std::vector<int>> holders;
  const std::vector<int> first = islands_of(ranks);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    const auto [found, fresh] = islands[first[r]].emplace(ranks[r].part, rank);
    if (!fresh) {
      throw InvalidInput("ranks " + text_of({found->second, rank}) +
                             " are of one island and hold the same part of the model",
                         kWhere, kAlike);
    }
    holders[ranks[r].part].push_back(rank);
  }
  if (islands.size() == 1 && ranks.size() > 1) {
    throw InvalidInput(
        "the model is sharded over all " + std::to_string(ranks.size()) +
            " ranks, which leaves nothing to average between islands",
        kWhere,
        "shard it inside each island, as fully_shard(module, mesh=mesh[\"inside\"]) with "
        "mesh = init_device_mesh(device, (islands, inside), mesh_dim_names=(\"between\", \"inside\")); or "
        "train without gradweave.wrap()");
  }
  std::vector<std::vector<int>> groups(ranks.size());
  for (const auto& [part, group] : holders) {
    if (group.size() != islands.size()) {
      throw InvalidInput("islands differ: of " + std::to_string(islands.size()) + " only those of ranks " +
                             text_of(group) + " have that part of the model",
                         kWhere, kAlike);
    }
    for (const int rank : group) groups[static_cast<std::size_t>(rank)] = group;
  }
  return groups;
}

}  // namespace gradweave::peers
