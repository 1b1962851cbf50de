// ASC-WFBP: communications run at the same time and share the bandwidth, so that start-ups overlap.
//
// S. Shi, X. Chu, B. Li, "Exploiting simultaneous communications to accelerate data parallel distributed deep
// learning", INFOCOM 2021. The recurrence of mg_wfbp.cc with
//   merge l into l-1 iff ready(l-1) < start(l)
// and every op on a link of unlimited concurrency: each pays its start-up off the link, then the active ones
// share the bandwidth equally. Complexity: O(tensors). Deviations: the paper's recurrence for the end of
// simultaneous communications differs from an equal sharing of the bandwidth by up to 49%; what Gradweave
// claims is what the simulator says of the plan. Tensors of different dtype are not merged. Several links
// (links.cc).
#include "schemes/merging.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

PlanResult plan_asc_wfbp(const Workload& workload, const Cluster& cluster, const GradientOptions& options) {
  Cluster shared = cluster;
  for (Link& link : shared.links) link.concurrency = 0;
  const CostModel model(workload, shared, options.compression);
  return merged_plan(model, merged_greedily(model, MergeRule::kStart), !options.compression.name.empty());
}

}  // namespace

SchemeInfo asc_wfbp_scheme() {
  return scheme_row<GradientOptions>({.name = "asc_wfbp",
                                      .summary = "simultaneous communications share the link",
                                      .paper = "ASC-WFBP, INFOCOM 2021",
                                      .effect = Effect::kExact},
                                     {}, plan_asc_wfbp);
}

}  // namespace gradweave
