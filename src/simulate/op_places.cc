#include "simulate/op_places.h"

#include <algorithm>
#include <tuple>

namespace gradweave {

OpPlaces::OpPlaces(const ResolvedPlan& plan, const Uses& uses, const Program& calendar)
    : plan_(plan), uses_(uses), calendar_(calendar) {
  std::vector<std::int32_t> count(plan.plan.links.size());
  for (std::int64_t n = 0; n < calendar.head + calendar.period; ++n) {
    first_.push_back(positions_.size());
    std::ranges::fill(count, 0);
    for (const ResolvedOp& op : plan.iteration(n).ops)
      positions_.push_back(exists(op.merges, n) ? count[static_cast<std::size_t>(op.link)]++ : -1);
  }
}

OpPlace OpPlaces::place(std::int64_t iteration, std::size_t item, std::int64_t from) const {
  return {static_cast<std::int32_t>(iteration - from), plan_.iteration(iteration).ops[item].link,
          positions_[first_[calendar_.code_of(iteration)] + item]};
}

const std::vector<OpPlace>& OpPlaces::carrying(Role role, Indices blocks, Indices merges, std::int64_t n) {
  found_.clear();
  for (const std::int32_t block : blocks) {
    for (const std::int32_t merge : merges) {
      for (const Use& use : uses_.find(role, block, n + merge))
        found_.push_back(place(n + merge + use.later, static_cast<std::size_t>(use.item), n));
    }
  }
  // The last op of a link comes first.
  std::ranges::sort(found_, {},
                    [](const OpPlace& op) { return std::tuple(op.link, -op.iteration, -op.position); });
  const auto implied = [&](const OpPlace& kept, const OpPlace& op) {
    return kept.link == op.link &&
           (calendar_.concurrency[static_cast<std::size_t>(op.link)] == 1 || kept == op);
  };
  const auto rest = std::ranges::unique(found_, implied);
  found_.erase(rest.begin(), rest.end());
  return found_;
}

}  // namespace gradweave
