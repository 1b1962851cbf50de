// MG-WFBP: neighbouring tensors are merged where that ends the communication earlier.
//
// S. Shi, X. Chu, B. Li, "MG-WFBP: Merging gradients wisely for efficient communication in distributed deep
// learning", INFOCOM 2019, TPDS 2021. l counts tensors in forward order, 1..L; ready(l) is backward_end of
// its layer.
//   start(L) = ready(L), start(l) = max(start(l+1) + c(l+1), ready(l))        (1)
//   for l = L..2: merge l into l-1 iff ready(l-1) < start(l) + a              (2), then Eq. 1 again
//   a: what the merge saves: the start-up
// Complexity: O(tensors); exact O(tensors^2) at worst.
// Deviations: Eq. 2 is not optimal, as the paper has it. With a = 10 us and three tensors that are ready at
// 0, 9 and 15 us and take 90, 10 and 10 us beside the start-up, Eq. 2 merges all and ends at 135 us; the
// first alone and the other two merged end at 130 us. `solver=exact` minimises the end over all contiguous
// groups:
//   E(j) = min_{i<j} max(E(i), ready(j)) + c(i+1..j)       (3), tensors counted in backward order
// Tensors of different dtype are not merged. Several links (links.cc): groups are made for the first one.
#include "schemes/merging.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

enum class MergeSolver : std::uint8_t { kGreedy, kExact };

struct MgWfbpOptions {
  MergeSolver solver = MergeSolver::kGreedy;
  Compression compression;
};

PlanResult plan_mg_wfbp(const Workload& workload, const Cluster& cluster, const MgWfbpOptions& options) {
  const CostModel model(workload, cluster, options.compression);
  const bool compressed = !options.compression.name.empty();
  return merged_plan(model,
                     options.solver == MergeSolver::kExact ? merged_optimally(model, compressed)
                                                           : merged_greedily(model, MergeRule::kStartup),
                     compressed);
}

}  // namespace

SchemeInfo mg_wfbp_scheme() {
  return scheme_row<MgWfbpOptions>(
      {.name = "mg_wfbp",
       .summary = "neighbouring tensors merged where that saves time",
       .paper = "MG-WFBP, INFOCOM 2019",
       .effect = Effect::kExact},
      {option(&MgWfbpOptions::solver, {{"greedy", MergeSolver::kGreedy}, {"exact", MergeSolver::kExact}},
              {.name = "solver",
               .default_source = "the paper's rule",
               .meaning = "the paper's merge rule, or the best contiguous groups"})},
      plan_mg_wfbp);
}

}  // namespace gradweave
