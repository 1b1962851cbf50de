#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "gradweave/plan.h"
#include "gradweave/preserve.h"
#include "gradweave/workload.h"
#include "plan/resolved.h"

namespace gradweave {
namespace {

using Steps = std::vector<UpdateStep>;

// `n`, as a place in a period.
std::size_t place_in(std::int64_t period, std::int64_t n) {
  return static_cast<std::size_t>(((n % period) + period) % period);
}

// Adds what a residual adds to the gradient of iteration `taken`: whatever was dropped just before it.
void add_dropped(const ResolvedPlan& plan, std::int32_t block, std::int64_t taken, double weight,
                 std::map<std::int64_t, double>& gradients) {
  const std::span period = std::span(plan.slots).subspan(static_cast<std::size_t>(plan.prologue));
  const auto dropped = [&](std::int64_t n) {
    const Indices blocks = period[place_in(plan.period, n)].dropped;
    return std::ranges::find(blocks, block) != blocks.end();
  };
  // Some gradient of each period is taken, or the plan would not be valid.
  for (std::int64_t n = taken - 1; dropped(n) && weight != 0; --n) {
    weight *= plan.plan.residual.cap;
    gradients[n] += weight;
  }
}

Steps steps_of(const ResolvedPlan& plan, std::int32_t block) {
  // In the order in which they pass: those before the forward of the layer belong to the iteration before.
  std::vector<std::tuple<std::int32_t, std::int64_t, UpdateStep>> found;  // (after, rank, step)
  for (std::int64_t n = 0; n < plan.period; ++n) {
    const ResolvedIteration& iteration = plan.slots[static_cast<std::size_t>(plan.prologue + n)];
    for (const ResolvedApply& apply : iteration.applies) {
      const Apply& listed = *apply.apply;
      const bool local = listed.source == Source::kLocalGradient;
      const bool reduced =
          listed.source == Source::kReducedGradient && listed.correction == Correction::kNone;
      if (!(local || reduced) || std::ranges::find(apply.blocks, block) == apply.blocks.end()) continue;
      const bool before_forward =
          listed.at.kind == PointKind::kForwardStart && listed.at.layer <= plan.block(block).layer;
      const std::int64_t after = before_forward ? n - 1 : n;
      const bool mean = plan.plan.merge == Merge::kMean && reduced;
      std::map<std::int64_t, double> gradients;  // by iteration, relative to the period's first
      for (const std::int32_t merge : apply.merges) {
        const double weight = mean ? 1.0 / static_cast<double>(apply.merges.size()) : 1.0;
        gradients[n + merge] += weight;
        if (reduced && plan.plan.residual.enabled) add_dropped(plan, block, n + merge, weight, gradients);
      }
      UpdateStep step{.after = static_cast<std::int32_t>(place_in(plan.period, after))};
      for (const auto& [at, weight] : gradients)
        step.gradients.push_back({static_cast<std::int32_t>(at - after), weight});
      found.emplace_back(step.after, before_forward ? plan.positions() + apply.rank : apply.rank, step);
    }
  }
  std::ranges::sort(found);
  Steps steps;
  for (auto& [after, rank, step] : found) steps.push_back(std::move(step));
  return steps;
}

}  // namespace

std::vector<Updates> updates_of(const Plan& plan, const Workload& workload) {
  const WorkloadIndex index(workload);
  const ResolvedPlan resolved = resolve(plan, index, nullptr);
  std::map<Steps, double> elements;
  double total = 0;
  for (std::size_t b = 0; b < resolved.blocks.size(); ++b) {
    const double own = static_cast<double>(plan.blocks[b].end - plan.blocks[b].begin);
    elements[steps_of(resolved, static_cast<std::int32_t>(b))] += own;
    total += own;
  }
  std::vector<Updates> found;
  for (const auto& [steps, own] : elements)
    found.push_back(
        {.period = static_cast<std::int32_t>(resolved.period), .steps = steps, .share = own / total});
  std::ranges::stable_sort(found, std::greater(), &Updates::share);
  return found;
}

}  // namespace gradweave
