// Local SGD: every worker makes its own step in every iteration; every H-th iteration all are averaged.
//
// S. U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; FLSGD in DreamDDP, 2025.
//
//   T  compute   time of one iteration's computation      H  period
//   c  the time in which all links together carry the model once, one message for each link and dtype
//   H iterations take H T + c: the average must follow the last local step and precede the next forward. (1)
//
// The model is cut so that all links are through at once: the least time in which everything fits. In the
// iteration that averages, the local step is made at backward_end(0), so that the averages can be applied at
// iteration_end.
// Complexity: O(log c * (tensors + links)). Deviations: several links.
#include <algorithm>

#include "schemes/common.h"
#include "schemes/compressed.h"
#include "schemes/dreamddp/plan_of_sets.h"
#include "schemes/fewer_links.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"
#include "solve/slots.h"

namespace gradweave {
namespace {

// Returns the model on all links, one slot for each.
SlotFiller poured(const CostModel& model) {
  std::vector<Slot> slots;
  for (std::size_t k = 0; k < model.link_count(); ++k) slots.push_back({.link = k});
  std::vector<Slice> tensors = tensors_in_backward_order(model);
  std::ranges::stable_sort(tensors, {},
                           [&](const Slice& slice) { return model.index().tensors[slice.tensor].dtype; });
  const auto fits = [&](Nanoseconds time) { return SlotFiller(model, slots, time, false).pour(tensors); };
  SlotFiller filler(model, slots, least_time(time_that_fits(1, fits), 0, fits), true);
  filler.pour(tensors);
  return filler;
}

Plan plan_on_all_links(const CostModel& model, std::int64_t period) {
  Plan plan = new_plan(model, static_cast<std::size_t>(period));
  const SlotFiller filler = poured(model);
  const Point backward_done{.kind = PointKind::kBackwardEnd, .layer = 0};
  const Point end{.kind = PointKind::kIterationEnd};
  Iteration& last = plan.period.back();
  std::vector<std::int32_t> all;
  for (std::size_t s = 0; s < filler.slots().size(); ++s) {
    for (const Message& message : filler.messages(s)) {
      Op op{.link = plan.links[s].name,
            .payload = Payload::kParameter,
            .merges = {0},
            .release = {backward_done}};
      op.blocks = add_blocks(plan, model, message.slices);
      all.insert(all.end(), op.blocks.begin(), op.blocks.end());
      last.ops.push_back(std::move(op));
    }
  }
  if (all.empty()) return plan;
  for (Iteration& iteration : plan.period) {
    const Point at = &iteration == &last ? backward_done : end;
    iteration.applies.push_back({.at = at, .blocks = all, .merges = {0}, .source = Source::kLocalGradient});
  }
  last.applies.push_back({.at = end, .blocks = all, .merges = {0}, .source = Source::kAveragedParameter});
  return plan;
}

PlanResult plan_local_sgd(const Workload& workload, const Cluster& cluster, const PeriodOptions& options) {
  return fastest_over_codecs(workload, cluster, options.averages, [&](const Compression& codec) {
    return fastest_over_links(workload, cluster, [&](const Cluster& links) {
      const CostModel model(workload, links, codec, Payload::kParameter, options.averages.outer.has_value());
      Plan plan = plan_on_all_links(model, options.period);
      set_averages(plan, codec, options.averages);
      return plan;
    });
  });
}

}  // namespace

SchemeInfo local_sgd_scheme() {
  return scheme_row<PeriodOptions>({.name = "local_sgd",
                                    .summary = "local steps; all parameters averaged every H-th iteration",
                                    .paper = "Local SGD, ICLR 2019",
                                    .effect = Effect::kLocal},
                                   {option(&PeriodOptions::period, period_option())}, plan_local_sgd);
}

}  // namespace gradweave
