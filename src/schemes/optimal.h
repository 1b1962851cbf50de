#pragma once

#include "gradweave/cluster.h"
#include "gradweave/workload.h"

namespace gradweave {

// Returns whether `optimal` searches orders of whole tensors for this input. Where it does not, its exact
// family is the best of the other schemes, each tuned as `auto` tunes them.
bool optimal_searches(const Workload& workload, const Cluster& cluster);

}  // namespace gradweave
