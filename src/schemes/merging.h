// Merging of neighbouring tensors in backward order, shared by MG-WFBP and ASC-WFBP.
#pragma once

#include <vector>

#include "gradweave/cost.h"
#include "schemes/common.h"

namespace gradweave {

// When a tensor joins the group before it.
enum class MergeRule {
  kStartup,  // MG-WFBP: ready(l-1) < start(l) + a
  kStart,    // ASC-WFBP: ready(l-1) < start(l)
};

// Returns the groups that the rule yields on the first link, in backward order. O(tensors).
std::vector<Message> merged_greedily(const CostModel& model, MergeRule rule);

// Returns the contiguous groups whose last op ends first on the first link. `compressed`: whether the model's
// gradients go through a compressor; without one, bounds spare most evaluations. O(tensors^2).
std::vector<Message> merged_optimally(const CostModel& model, bool compressed = true);

// Returns the synchronous plan of the groups. With several links the optimal groups and single tensors
// compete with them: groups that suit one link may leave the others idle. `compressed` as above.
Plan merged_plan(const CostModel& model, const std::vector<Message>& groups, bool compressed);

}  // namespace gradweave
