#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
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

// Reads the steps of all blocks off the period of a plan, in one pass.
class Reader {
 public:
  explicit Reader(const ResolvedPlan& plan)
      : plan_(plan),
        dropped_(static_cast<std::size_t>(plan.period), std::vector<char>(plan.blocks.size())),
        found_(plan.blocks.size()) {
    for (std::int64_t n = 0; n < plan.period; ++n) {
      for (const std::int32_t block : plan.iteration(plan.prologue + n).dropped)
        dropped_[static_cast<std::size_t>(n)][static_cast<std::size_t>(block)] = 1;
    }
    for (std::int64_t n = 0; n < plan.period; ++n) {
      for (const ResolvedApply& apply : plan.iteration(plan.prologue + n).applies) read(apply, n);
    }
  }

  // Returns the steps of each block.
  std::vector<Steps> steps() && {
    std::vector<Steps> steps;
    for (std::vector<Found>& of_block : found_) {
      std::ranges::sort(of_block, {},
                        [](const Found& found) { return std::pair(found.step.after, found.rank); });
      Steps& ordered = steps.emplace_back();
      for (Found& found : of_block) ordered.push_back(std::move(found.step));
    }
    return steps;
  }

 private:
  struct Found {
    UpdateStep step;
    std::int64_t rank = 0;  // among the steps after the same forward
  };

  // Notes the steps that an apply makes, listed in iteration n of the period.
  void read(const ResolvedApply& apply, std::int64_t n) {
    const Apply& listed = *apply.apply;
    const bool reduced = listed.source == Source::kReducedGradient && listed.correction == Correction::kNone;
    if (!reduced && listed.source != Source::kLocalGradient) return;
    for (const std::int32_t block : apply.blocks) {
      // A step before the forward of the layer belongs to the iteration before, whose last it is.
      const bool before_forward =
          listed.at.kind == PointKind::kForwardStart && listed.at.layer <= plan_.block(block).layer;
      const std::int64_t after = before_forward ? n - 1 : n;
      UpdateStep step{.after = static_cast<std::int32_t>(place_in(plan_.period, after))};
      for (const auto& [at, weight] : gradients_of(apply, reduced, block, n))
        step.gradients.push_back({static_cast<std::int32_t>(at - after), weight});
      found_[static_cast<std::size_t>(block)].push_back(
          {std::move(step), before_forward ? plan_.positions() + apply.rank : apply.rank});
    }
  }

  // Returns the weights by iteration, relative to the period's first.
  std::map<std::int64_t, double> gradients_of(const ResolvedApply& apply, bool reduced, std::int32_t block,
                                              std::int64_t n) const {
    const bool mean = plan_.plan.merge == Merge::kMean && reduced;
    std::map<std::int64_t, double> gradients;
    for (const std::int32_t merge : apply.merges) {
      double weight = mean ? 1.0 / static_cast<double>(apply.merges.size()) : 1.0;
      gradients[n + merge] += weight;
      if (!reduced || !plan_.plan.residual.enabled) continue;
      // With it goes whatever was dropped just before. Some gradient of each period is taken: the plan is valid.
      for (std::int64_t at = n + merge - 1; is_dropped(block, at) && weight != 0; --at) {
        weight *= plan_.plan.residual.cap;
        gradients[at] += weight;
      }
    }
    return gradients;
  }

  bool is_dropped(std::int32_t block, std::int64_t n) const {
    return dropped_[place_in(plan_.period, n)][static_cast<std::size_t>(block)] != 0;
  }

  const ResolvedPlan& plan_;
  std::vector<std::vector<char>> dropped_;  // by iteration of the period and block
  std::vector<std::vector<Found>> found_;   // by block
};

}  // namespace

Updates plain_updates() { return {.steps = {{.gradients = {UsedGradient{}}}}}; }

std::int32_t oldest_gradient(const Updates& updates) {
  std::int32_t oldest = 0;
  for (const UpdateStep& step : updates.steps)
    for (const UsedGradient& used : step.gradients) oldest = std::max(oldest, -used.iteration);
  return oldest;
}

std::vector<Updates> updates_of(const Plan& plan, const Workload& workload) {
  const WorkloadIndex index(workload);
  const ResolvedPlan resolved = resolve(plan, index, nullptr);
  std::map<Steps, double> elements;
  double total = 0;
  const std::vector<Steps> steps_of_block = Reader(resolved).steps();
  for (std::size_t b = 0; b < plan.blocks.size(); ++b) {
    const double own = static_cast<double>(plan.blocks[b].end - plan.blocks[b].begin);
    elements[steps_of_block[b]] += own;
    total += own;
  }
  std::vector<Updates> found;
  for (const auto& [steps, own] : elements)
    found.push_back(
        {.period = static_cast<std::int32_t>(resolved.period), .steps = steps, .share = own / total});
  std::ranges::stable_sort(found, std::greater(), &Updates::share);
  return found;
}

std::vector<std::string> late_tensors(const Plan& plan, const Workload& workload) {
  const WorkloadIndex index(workload);
  const ResolvedPlan resolved = resolve(plan, index, nullptr);
  const auto is_prompt = [](const UpdateStep& step) { return step.gradients.back().iteration == 0; };
  const std::vector<Steps> steps_of_block = Reader(resolved).steps();
  std::set<std::string> prompt;
  for (std::size_t b = 0; b < plan.blocks.size(); ++b)
    if (std::ranges::any_of(steps_of_block[b], is_prompt)) prompt.insert(plan.blocks[b].tensor);
  std::vector<std::string> late = index.tensor_names;
  std::erase_if(late, [&](const std::string& name) { return prompt.contains(name); });
  return late;
}

}  // namespace gradweave
