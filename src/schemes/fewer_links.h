// For schemes whose rules can make a plan for more links slower than one for fewer.
#pragma once

#include <functional>

#include "gradweave/cluster.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"

namespace gradweave {

// Returns the fastest of the plans that `plan` makes for the cluster's first link, its first two, ... all of
// them; of equally fast ones that for the most links. Gradients will go through `compression`. One plan and
// one simulation for each number of links, until nothing is exposed.
PlanResult fastest_over_links(const Workload& workload, const Cluster& cluster,
                              const std::function<PlanResult(const Cluster&)>& plan,
                              const Compression& compression = {});

}  // namespace gradweave
