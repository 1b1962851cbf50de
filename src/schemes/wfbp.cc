// Wait-free backward propagation: each tensor is all-reduced as soon as its gradient exists.
//
// H. Zhang et al., "Poseidon", USENIX ATC 2017; the baseline WFBP of DeFT, US-Byte and DeAR.
//   start(i) = max(ready(i), end(i-1)) in backward order, on one link; ready(i) is backward_end of tensor i's
//   layer.
// Complexity: O(tensors) on one link. Deviations: several links (links.cc).
#include "schemes/common.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

PlanResult plan_wfbp(const Workload& workload, const Cluster& cluster, const GradientOptions& options) {
  const CostModel model(workload, cluster, options.compression);
  std::vector<Message> messages;
  std::vector<Release> releases;
  for (const Slice& slice : tensors_in_backward_order(model)) {
    messages.push_back({{slice}});
    releases.push_back(release_when_ready(model, messages.back().slices));
  }
  return synchronous_plan(model, messages, releases);
}

}  // namespace

SchemeInfo wfbp_scheme() {
  return scheme_row<GradientOptions>({.name = "wfbp",
                                      .summary = "each tensor as soon as its gradient is ready",
                                      .paper = "Poseidon, ATC 2017",
                                      .effect = Effect::kExact},
                                     {}, plan_wfbp);
}

}  // namespace gradweave
