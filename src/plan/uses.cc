#include "plan/uses.h"

#include <algorithm>

namespace gradweave {
namespace {

Role role_of(const ResolvedOp& op) {
  const bool scatters = op.op->collective == Collective::kReduceScatter;
  if (op.op->payload == Payload::kParameter) {
    if (op.level == Level::kBetween) return Role::kParameterBetween;
    return op.level == Level::kInside && scatters ? Role::kParameterScatter : Role::kParameter;
  }
  if (op.level == Level::kBetween) return op.gathers() ? Role::kBetweenGather : Role::kBetween;
  return scatters ? Role::kScatter : Role::kGradient;
}

Role role_of(const Apply& apply) {
  if (apply.source == Source::kReducedGradient) return Role::kReduced;
  return apply.source == Source::kLocalGradient ? Role::kLocal : Role::kAverage;
}

}  // namespace

template <typename Visit>
void Uses::for_each(Visit visit) const {
  constexpr std::int32_t kThis[] = {0};
  for (std::size_t s = 0; s < plan_.slots.size(); ++s) {
    const auto slot = static_cast<std::int64_t>(s);
    const auto add = [&](Role role, Indices blocks, Indices merges, std::size_t item) {
      for (const std::int32_t m : merges) {
        const auto meet = [&](std::int64_t n) {
          Use use{role, static_cast<std::int32_t>(n), -m, static_cast<std::int32_t>(item)};
          for (const std::int32_t b : blocks) {
            visit(b, use);
            ++use.part;
          }
        };
        std::int64_t n = slot + m;
        if (slot < plan_.prologue) {
          if (n >= 0) meet(n);
          continue;
        }
        if (n < 0) n += (-n + plan_.period - 1) / plan_.period * plan_.period;
        for (; n < plan_.prologue; n += plan_.period) meet(n);
        meet(n);  // and every period after
      }
    };
    const ResolvedIteration& iteration = plan_.slots[s];
    for (std::size_t k = 0; k < iteration.ops.size(); ++k)
      add(role_of(iteration.ops[k]), iteration.ops[k].blocks, iteration.ops[k].merges, k);
    for (std::size_t k = 0; k < iteration.applies.size(); ++k) {
      const ResolvedApply& apply = iteration.applies[k];
      add(role_of(*apply.apply), apply.blocks, apply.merges, k);
    }
    add(Role::kDropped, iteration.dropped, kThis, 0);
  }
}

Uses::Uses(const ResolvedPlan& plan) : plan_(plan), first_(plan.blocks.size() + 1, 0) {
  for_each([&](std::int32_t b, const Use&) { ++first_[static_cast<std::size_t>(b) + 1]; });
  for (std::size_t b = 1; b < first_.size(); ++b) first_[b] += first_[b - 1];
  uses_.resize(first_.back());
  std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
  for_each([&](std::int32_t b, const Use& use) { uses_[next[static_cast<std::size_t>(b)]++] = use; });
  for (std::size_t b = 0; b + 1 < first_.size(); ++b) {
    std::ranges::sort(std::span(uses_).subspan(first_[b], first_[b + 1] - first_[b]));
  }
}

std::span<const Use> Uses::find(Role role, std::int32_t block, std::int64_t n) const {
  if (n < 0) return {};
  const std::pair key(role, static_cast<std::int32_t>(plan_.slot_of(n)));
  const std::span<const Use> own = of(block);
  const auto found =
      std::ranges::equal_range(own, key, {}, [](const Use& use) { return std::pair(use.role, use.row); });
  return {found.begin(), found.end()};
}

}  // namespace gradweave
