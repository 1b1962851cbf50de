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
//   needs no memory: nothing reads the weights between. `only`: layers are sent after the whole step and hide
//   there alone, so that gradients may be clipped (after_step.h).
// - Links that serve several ops at once are planned as if ops went one after another.
#include "gradweave/error.h"
#include "schemes/common.h"
#include "schemes/compressed.h"
#include "schemes/dreamddp/after_step.h"
#include "schemes/dreamddp/plan_of_sets.h"
#include "schemes/fewer_links.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

enum class IntervalSolver : std::uint8_t { kExact, kDfs };
enum class Sets : std::uint8_t { kIntervals, kArbitrary };
enum class ForwardOverlap : std::uint8_t { kOff, kOn, kOnly };

struct DreamDdpOptions {
  std::int64_t period = kDefaultPeriod;  // H
  IntervalSolver solver = IntervalSolver::kExact;
  bool fill_bubbles = true;
  ForwardOverlap forward_overlap = ForwardOverlap::kOff;
  Sets sets = Sets::kIntervals;
  std::int64_t search_nodes = 100'000;
  AverageOptions averages;
};

PlanWithStall plan_on_all_links(const Workload& workload, const Cluster& cluster,
                                const DreamDdpOptions& options, const Compression& codec) {
  const CostModel model(workload, cluster, codec, Payload::kParameter, options.averages.outer.has_value());
  const auto period = static_cast<std::size_t>(options.period);
  if (options.forward_overlap == ForwardOverlap::kOnly) {
    PlanWithStall planned = plan_after_step(model, period);
    set_averages(planned.plan, codec, options.averages);
    return planned;
  }
  const bool forward_overlap = options.forward_overlap == ForwardOverlap::kOn;
  const Packer packer(model, forward_overlap);
  Assignment assignment;
  if (options.sets == Sets::kArbitrary) {
    assignment = arbitrary_sets(packer, period, options.search_nodes);
  } else if (options.solver == IntervalSolver::kDfs) {
    assignment = paper_search(packer, period);
  } else {
    assignment = exact_intervals(packer, period);
  }
  if (options.fill_bubbles) fill_bubbles(packer, assignment);
  PlanWithStall planned{plan_of_sets(model, packer, assignment, forward_overlap), assignment.stall};
  set_averages(planned.plan, codec, options.averages);
  return planned;
}

// Messages go where they end first, which can make a set later than fewer links would. Without sharing, what
// the stalls come to is what the simulator finds.
PlanResult plan_under(const Compression& codec, const Workload& workload, const Cluster& cluster,
                      const DreamDdpOptions& options) {
  if (has_shared_link(cluster)) {
    return fastest_over_links(workload, cluster, [&](const Cluster& links) {
      return plan_on_all_links(workload, links, options, codec).plan;
    });
  }
  PlanWithStall best = plan_on_all_links(workload, cluster, options, codec);
  for (Cluster fewer = cluster; fewer.links.size() > 1 && best.stall > 0;) {
    fewer.links.pop_back();
    PlanWithStall other = plan_on_all_links(workload, fewer, options, codec);
    if (other.stall < best.stall) best = std::move(other);
  }
  return best.plan;
}

void check_dreamddp(const DreamDdpOptions& options) {
  if (options.forward_overlap != ForwardOverlap::kOnly) return;
  if (options.solver == IntervalSolver::kExact && options.sets == Sets::kIntervals) return;
  throw InvalidInput("forward_overlap=only takes neither solver nor sets: it sends nothing in the backward",
                     "option forward_overlap of dreamddp", "leave out solver and sets");
}

PlanResult plan_dreamddp(const Workload& workload, const Cluster& cluster, const DreamDdpOptions& options) {
  return fastest_over_codecs(workload, cluster, options.averages, [&](const Compression& codec) {
    return plan_under(codec, workload, cluster, options);
  });
}

}  // namespace

SchemeInfo dreamddp_scheme() {
  using Options = DreamDdpOptions;
  return scheme_row<Options>(
      {.name = "dreamddp",
       .summary = "local steps; layers averaged when the backward hides it best",
       .paper = "DreamDDP, 2025",
       .effect = Effect::kLocal},
      {option(&Options::period, period_option()),
       option(&Options::solver, {{"exact", IntervalSolver::kExact}, {"dfs", IntervalSolver::kDfs}},
              {.name = "solver",
               .default_source = "Gradweave; dfs is the paper's Algorithm 2",
               .meaning = "how contiguous sets are found"}),
       option(&Options::fill_bubbles, {.name = "fill_bubbles",
                                       .default_source = "DreamDDP, Section 3.4",
                                       .meaning = "layers are averaged more often where that costs no time"}),
       option(
           &Options::forward_overlap,
           {{"off", ForwardOverlap::kOff}, {"on", ForwardOverlap::kOn}, {"only", ForwardOverlap::kOnly}},
           {.name = "forward_overlap",
            .default_source = "DreamDDP has none",
            .meaning = "averages may arrive as late as the layer's next forward; only: they are sent after "
                       "the whole step, so gradients may be clipped"}),
       option(&Options::sets, {{"intervals", Sets::kIntervals}, {"arbitrary", Sets::kArbitrary}},
              {.name = "sets",
               .default_source = "DreamDDP, Definition 1",
               .meaning = "arbitrary: sets need not be contiguous; found by a search, without solver"}),
       option(&Options::search_nodes,
              {.name = "search_nodes",
               .unit = Unit::kNodes,
               .default_source = "Gradweave: below a second",
               .minimum = 1,
               .maximum = 1e9,
               .meaning = "after this many nodes the search for arbitrary sets ends with the best found"})},
      plan_dreamddp, check_dreamddp);
}

}  // namespace gradweave
