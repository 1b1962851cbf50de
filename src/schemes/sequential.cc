// No overlap: the whole backward, then one all-reduce per tensor, then the update. The yardstick for
// everything else.
//
// iteration = T_f + T_b + sum over tensors of c, on one link; several links as in links.cc. Complexity:
// O(tensors) on one link.
#include "schemes/common.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

PlanResult plan_sequential(const Workload& workload, const Cluster& cluster, const GradientOptions& options) {
  const CostModel model(workload, cluster, options.compression);
  std::vector<Message> messages;
  for (const Slice& slice : tensors_in_backward_order(model)) messages.push_back({{slice}});
  const std::vector<Release> releases(messages.size(),
                                      Release{{.kind = PointKind::kBackwardEnd, .layer = 0}});
  return synchronous_plan(model, messages, releases);
}

}  // namespace

SchemeInfo sequential_scheme() {
  return scheme_row<GradientOptions>({.name = "sequential",
                                      .summary = "no overlap: communicate after the whole backward",
                                      .paper = "baseline",
                                      .effect = Effect::kExact},
                                     {}, plan_sequential);
}

}  // namespace gradweave
