// DreamDDP: which layers are averaged in which of H iterations is scheduled, so that compute waits least.
//
// Z. Tang et al., "DreamDDP: Accelerating Data Parallel Distributed LLM Training with Layer-wise Scheduled
// Partial Synchronization", 2025.
//
//   L_h  sets[h]   layers averaged in iteration h, contiguous in backward order (L_{1:H} in the paper)
//   P_k  ready     backward_end of the k-th layer in backward order; P_L: the end of the computation
//   c_k            communication time of layer k; C: its prefix sums
//
//   F(i,j) = max_{i<=k<=j} (P_k + C_j - C_{k-1})     when the queue of layers i..j is through   (Eq. 7)
//   e(i,j) = max(0, F(i,j) - P_L)                    by how much the iteration grows
//   D[h][j] = min_{i<=j} D[h-1][i] + e(i+1,j)        least sum for layers 1..j in h iterations  (Eqs. 9, 10)
//   {1..m} joins [i..j] if F({1..m} + [i..j]) <= max(P_L, F(i,j))                               (Eq. 12)
//
// Solvers (solve/intervals.h): `exact`, the recurrence above, O(L^2 H); `dfs`, Algorithm 2. `sets=arbitrary`
// searches sets that need not be contiguous by branch and bound.
//
// Deviations from the paper:
// - Eqs. 9-12 have a plain sum for t_COMM where Eq. 7 defines a queue: the queue is used everywhere (under
//   the sum, "optimal hiding" does not hold).
// - Algorithm 2: line 28 recurses on Psi_minus, line 30's h-1 is h+1, line 4's min is max.
// - Filling takes trailing slack too.
// - Averages are taken after the local step (Eq. 5; the authors' code averages before it). Adam's moments stay
//   local.
// - An interval's layers are fused into messages, on several links: F is the end of the packed queue.
// - Layers without parameters are no layers here. H > L leaves sets empty.
// - `forward_overlap` lets layer l's average arrive as late as forward_start(l) of the next iteration, which
//   needs no memory: nothing reads the weights between.
// - Links that serve several ops at once are planned as if ops went one after another.
#include "schemes/common.h"
#include "schemes/compressed.h"
#include "schemes/dreamddp/plan_of_sets.h"
#include "schemes/fewer_links.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

struct Planned {
  Plan plan;
  Nanoseconds stall = 0;
};

Planned plan_on_all_links(const Workload& workload, const Cluster& cluster, const OptionValues& values,
                          const Compression& codec) {
  const CostModel model(workload, cluster, codec, Payload::kParameter);
  const bool forward_overlap = values.on("forward_overlap");
  const Packer packer(model, forward_overlap);
  const auto period = static_cast<std::size_t>(*values.integer("period"));
  Assignment assignment;
  if (values.text("sets") == "arbitrary") {
    assignment = arbitrary_sets(packer, period, *values.integer("search_nodes"));
  } else {
    assignment =
        values.text("solver") == "dfs" ? paper_search(packer, period) : exact_intervals(packer, period);
  }
  if (values.on("fill_bubbles")) fill_bubbles(packer, assignment);
  Planned planned{plan_of_sets(model, packer, assignment, forward_overlap), assignment.stall};
  set_averages(planned.plan, codec, values);
  return planned;
}

// Messages go where they end first, which can make a set later than fewer links would. Without sharing, what
// the stalls come to is what the simulator finds.
PlanResult plan_under(const Compression& codec, const Workload& workload, const Cluster& cluster,
                      const OptionValues& values) {
  if (has_shared_link(cluster)) {
    return fastest_over_links(workload, cluster, [&](const Cluster& links) {
      return plan_on_all_links(workload, links, values, codec).plan;
    });
  }
  Planned best = plan_on_all_links(workload, cluster, values, codec);
  for (Cluster fewer = cluster; fewer.links.size() > 1 && best.stall > 0;) {
    fewer.links.pop_back();
    Planned other = plan_on_all_links(workload, fewer, values, codec);
    if (other.stall < best.stall) best = std::move(other);
  }
  return best.plan;
}

PlanResult plan_dreamddp(const Workload& workload, const Cluster& cluster, const OptionValues& values) {
  return fastest_over_codecs(workload, cluster, values, [&](const Compression& codec) {
    return plan_under(codec, workload, cluster, values);
  });
}

OptionSpec text_option(std::string_view name, const std::vector<std::string_view>& choices,
                       std::string_view source, std::string_view meaning) {
  return {.name = name,
          .type = OptionType::kText,
          .default_value = choices.front(),
          .default_source = source,
          .choices = choices,
          .meaning = meaning};
}

}  // namespace

SchemeInfo dreamddp_scheme() {
  return {
      .name = "dreamddp",
      .summary = "local steps; layers averaged when the backward hides it best",
      .paper = "DreamDDP, 2025",
      .effect = Effect::kLocal,
      .options = {period_option(),
                  text_option("solver", {"exact", "dfs"}, "Gradweave; dfs is the paper's Algorithm 2",
                              "how contiguous sets are found"),
                  text_option("fill_bubbles", {"on", "off"}, "DreamDDP, Section 3.4",
                              "layers are averaged more often where that costs no time"),
                  text_option("forward_overlap", {"off", "on"}, "DreamDDP has none",
                              "averages may arrive as late as the layer's next forward"),
                  text_option("sets", {"intervals", "arbitrary"}, "DreamDDP, Definition 1",
                              "arbitrary: sets need not be contiguous; searched, solver is ignored"),
                  {.name = "search_nodes",
                   .type = OptionType::kInteger,
                   .unit = Unit::kNodes,
                   .default_value = "100000",
                   .default_source = "Gradweave: below a second",
                   .minimum = 1,
                   .maximum = 1e9,
                   .meaning = "after so many nodes the search for arbitrary sets ends with the best found"}},
      .payload = Payload::kParameter,
      .plan = plan_dreamddp};
}

}  // namespace gradweave
