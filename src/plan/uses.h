// Who uses the gradient of a block, or its value after the local step, of each iteration: the ops that carry it,
// the applies that consume it.
//
// No merge is above 0, so who uses an iteration's data repeats with the period from the first iteration after the
// prologue on. A row is an iteration of the data, folded in this way: prologue + (n - prologue) % period.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/resolved.h"

namespace gradweave {

enum class Role : std::uint8_t {
  kGradient,  // op that brings the reduced gradient: all but a reduce_scatter, of two levels the all_gather inside
  kScatter,        // reduce_scatter of the gradient, of two levels the one inside
  kBetween,        // two levels: op between nodes of the gradient's shards, but an all_gather
  kBetweenGather,  // and the all_gather
  kParameter,  // op that brings the average of the parameters as they are after the iteration's local step
  kParameterScatter,  // two levels: the reduce_scatter inside that comes before
  kParameterBetween,  // and the op between nodes
  kReduced,           // apply of the reduced gradient
  kLocal,             // apply of the local gradient
  kAverage,           // apply of the averaged parameters
  kDropped,           // the gradient goes into the residual
};

struct Use {
  Role role = Role::kGradient;
  std::int32_t row = 0;
  std::int32_t later = 0;  // the user is listed so many iterations after the data's; >= 0
  std::int32_t item = 0;   // its place among the ops, or applies, of its iteration
  std::int32_t part = 0;   // the block's place in the item's list
  friend auto operator<=>(const Use&, const Use&) = default;
};

class Uses {
 public:
  // The plan must outlive the object, and have a period. O(blocks and merges of all ops and applies), log factors
  // aside, times 1 + prologue / period for merges that meet the prologue from the period.
  explicit Uses(const ResolvedPlan& plan);

  // Returns all uses of a block, sorted.
  std::span<const Use> of(std::int32_t block) const {
    const auto b = static_cast<std::size_t>(block);
    return std::span(uses_).subspan(first_[b], first_[b + 1] - first_[b]);
  }

  // Returns who uses the block's data of iteration n so; none before iteration 0. O(log of the block's uses).
  std::span<const Use> find(Role role, std::int32_t block, std::int64_t n) const;

 private:
  template <typename Visit>
  void for_each(Visit visit) const;

  const ResolvedPlan& plan_;
  std::vector<Use> uses_;
  std::vector<std::size_t> first_;  // per block, and the end
};

}  // namespace gradweave
