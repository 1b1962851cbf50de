// Two levels of links: the plan of one level that any scheme makes, in steps inside nodes and between them.
#pragma once

#include "gradweave/cluster.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"

namespace gradweave {

// Returns what `flat`, a valid plan for flattened(cluster), does, over the cluster's levels: each op becomes a
// reduce_scatter inside nodes, the op itself between nodes, and an all_gather inside; of a reduce_scatter and its
// all_gather each becomes two. Blocks, applies and the order between nodes stay. Pure. One timeline of three periods and
// two simulations.
Plan over_levels(const Plan& flat, const Workload& workload, const Cluster& cluster);

}  // namespace gradweave
