#include "plan/fates.h"

#include <algorithm>

namespace gradweave {

void BlockFates::collect(std::int32_t block) {
  block_ = block;
  fates_.assign(static_cast<std::size_t>(plan_.checked), {});
  changes_.clear();
  for (const Use& use : plan_.uses().of(block)) {
    const std::int64_t step = use.row < plan_.prologue ? plan_.checked : plan_.period;
    for (std::int64_t n = use.row; n < plan_.checked; n += step) add(use, n);
  }
  std::ranges::sort(changes_, {}, &Change::number);
  const auto repeated = std::ranges::unique(changes_, {}, &Change::number);
  changes_.erase(repeated.begin(), repeated.end());
}

void BlockFates::add(const Use& use, std::int64_t n) {
  Fate& fate = fates_[static_cast<std::size_t>(n)];
  const std::int64_t i = n + use.later;
  const auto item = static_cast<std::size_t>(use.item);
  if (use.role == Role::kDropped) return fate.dropped.add(0);
  if (use.role == Role::kReduced || use.role == Role::kLocal || use.role == Role::kAverage) {
    const Apply& apply = *plan_.iteration(i).applies[item].apply;
    const std::int64_t number = plan_.apply_number(i, item);
    Tally& tally = use.role == Role::kReduced ? fate.applied
                   : use.role == Role::kLocal ? fate.local
                                              : fate.averaged;
    tally.add(number);
    fate.corrected |= use.role == Role::kReduced && apply.correction == Correction::kLocal;
    changes_.push_back({number, apply.source, apply.mode, apply.correction == Correction::kLocal});
  } else if (!plan_.iteration(i).ops[item].gathers()) {  // rule 3 ties it to its reduce_scatter
    const std::int64_t number = plan_.op_number(i, item);
    if (use.role == Role::kGradient || use.role == Role::kScatter) fate.reduced.add(number);
    if (use.role == Role::kParameter || use.role == Role::kParameterScatter) fate.sent.add(number);
    if (use.role == Role::kParameterBetween) fate.between.add(number);  // rule 3 ties it, too
  }
}

}  // namespace gradweave
