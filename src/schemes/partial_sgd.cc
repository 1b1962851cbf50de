// Partial synchronisation: in each of H iterations another part of the layers is averaged, overlapped with
// the backward.
//
// Z. Tang et al., "DreamDDP", 2025, Section 3.1, Example 1 (PLSGD-ENP, equal-number partition).
//
//   L  the layers with tensors, H  period; set h = layers [hL/H, (h+1)L/H) in backward order.
//
// Layer l is sent after its local step at backward_end(l) (Eq. 5: the average follows the step); the
// iteration ends when its averages are there. H > L leaves sets empty. Complexity: O(L * links). Deviations
// from the paper: layers are fused into messages (one all-reduce per parameter is bound by start-ups),
// several links, layers without parameters do not count.
#include "schemes/compressed.h"
#include "schemes/dreamddp/plan_of_sets.h"
#include "schemes/fewer_links.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

PlanResult plan_on_all_links(const Workload& workload, const Cluster& cluster, const PeriodOptions& options,
                             const Compression& codec) {
  const CostModel model(workload, cluster, codec, Payload::kParameter, options.averages.outer.has_value());
  const Packer packer(model, false);
  Plan plan =
      plan_of_sets(model, packer, equal_number(packer, static_cast<std::size_t>(options.period)), false);
  set_averages(plan, codec, options.averages);
  return plan;
}

PlanResult plan_partial_sgd(const Workload& workload, const Cluster& cluster, const PeriodOptions& options) {
  return fastest_over_codecs(workload, cluster, options.averages, [&](const Compression& codec) {
    return fastest_over_links(workload, cluster, [&](const Cluster& links) {
      return plan_on_all_links(workload, links, options, codec);
    });
  });
}

}  // namespace

SchemeInfo partial_sgd_scheme() {
  return scheme_row<PeriodOptions>(
      {.name = "partial_sgd",
       .summary = "local steps; an equal number of layers averaged in each of H iterations",
       .paper = "DreamDDP (PLSGD-ENP), 2025",
       .effect = Effect::kLocal},
      {option(&PeriodOptions::period, period_option())}, plan_partial_sgd);
}

}  // namespace gradweave
