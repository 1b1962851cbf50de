#include "plan/compiled_plan.h"

namespace gradweave {
namespace {

constexpr double kMaxWork = 2e8;  // (block, gradient) pairs of the unrolled plan

}  // namespace

CompiledPlan::CompiledPlan(ResolvedPlan resolved, Report& report) : ResolvedPlan(std::move(resolved)) {
  if (period > 0 && !report.full()) measure(report);
  if (checkable) relate();
}

CompiledPlan::CompiledPlan(ResolvedPlan resolved) : ResolvedPlan(std::move(resolved)) {
  Report report;
  measure(report);
  report.throw_first();
  relate();
}

void CompiledPlan::measure(Report& report) {
  double work = 0;
  double period_work = 0;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    double& total = static_cast<std::int64_t>(s) < prologue ? work : period_work;
    total += 1 + static_cast<double>(slots[s].dropped.size());
    const auto add = [&](const auto& item) {
      total += 1 + static_cast<double>(item.blocks.size()) * static_cast<double>(item.merges.size());
    };
    std::ranges::for_each(slots[s].ops, add);
    std::ranges::for_each(slots[s].applies, add);
  }
  checked = prologue + reach + period;
  horizon = checked + reach;
  work += period_work * (static_cast<double>(horizon - prologue) / static_cast<double>(period) + 1);
  if (work > kMaxWork) {
    report.add(7, -1,
               "is too large to be checked: unrolled, it has more than 2e8 pairs of block and iteration",
               "period", "use fewer blocks, a shorter period or smaller merges");
    return;
  }
  checkable = true;
  first_op_.assign(1, 0);
  first_apply_.assign(1, 0);
  for (std::int64_t n = 0; n < horizon; ++n) {
    first_op_.push_back(first_op_.back() + static_cast<std::int64_t>(iteration(n).ops.size()));
    first_apply_.push_back(first_apply_.back() + static_cast<std::int64_t>(iteration(n).applies.size()));
  }
}

void CompiledPlan::relate() {
  uses_.emplace(*this);
  for (std::int64_t n = 0; n < checked; ++n) {
    for (const ResolvedOp& op : iteration(n).ops) relate(n, op);
    for (const ResolvedApply& apply : iteration(n).applies) relate(n, apply);
  }
}

// Returns the role of the ops that come right before `op`; nothing of the first.
std::optional<Role> CompiledPlan::step_before(std::int64_t n, const ResolvedOp& op) const {
  const bool parameters = op.op->payload == Payload::kParameter;
  const auto there = [&](Role role) {
    return !op.blocks.empty() && !uses_->find(role, op.blocks.front(), n + op.merges.back()).empty();
  };
  if (op.level == Level::kBetween) {
    if (op.gathers()) return Role::kBetween;
    return parameters ? Role::kParameterScatter : Role::kScatter;
  }
  if (!op.gathers()) return std::nullopt;
  if (op.level == Level::kAll) return Role::kScatter;
  if (parameters) return Role::kParameterBetween;
  return there(Role::kBetweenGather) ? Role::kBetweenGather : Role::kBetween;
}

void CompiledPlan::relate(std::int64_t n, const ResolvedOp& op) {
  OpRanges& ranges = of_op_.emplace_back();
  ranges.steps.first = static_cast<std::uint32_t>(steps_.size());
  ranges.readings.first = static_cast<std::uint32_t>(readings_.size());
  const std::optional<Role> before = op.merges.empty() ? std::nullopt : step_before(n, op);
  const bool reads = op.op->payload == Payload::kParameter && !before;
  for (const std::int32_t m : op.merges) {
    if (!reads && !before) break;
    std::int32_t part = 0;
    for (const std::int32_t b : op.blocks) {
      for (const Use& use : uses_->find(reads ? Role::kLocal : *before, b, n + m)) {
        const OpRef ref{m + use.later, use.item};
        if (reads) {
          readings_.push_back({part, ref.delta, ref.op});
        } else if (steps_.size() == ranges.steps.first || steps_.back() != ref) {
          steps_.push_back(ref);
        }
      }
      ++part;
    }
  }
  ranges.steps.second = static_cast<std::uint32_t>(steps_.size());
  ranges.readings.second = static_cast<std::uint32_t>(readings_.size());
}

void CompiledPlan::relate(std::int64_t n, const ResolvedApply& apply) {
  const auto begin = static_cast<std::uint32_t>(deliveries_.size());
  const Source source = apply.apply->source;
  if (source == Source::kAveragedParameter) deliver(Role::kParameter, n, apply);
  if (source == Source::kReducedGradient && !deliver(Role::kGradient, n, apply))
    deliver(Role::kScatter, n, apply);
  of_apply_.emplace_back(begin, static_cast<std::uint32_t>(deliveries_.size()));
}

// Adds the deliveries of ops of a role. Returns whether there are any.
bool CompiledPlan::deliver(Role role, std::int64_t n, const ResolvedApply& apply) {
  const std::size_t before = deliveries_.size();
  // Whether the op carries just what the apply uses: no other merge has to be looked up then.
  const auto whole = [&](OpRef ref) {
    const Indices merges = iteration(n + ref.delta).ops[static_cast<std::size_t>(ref.op)].merges;
    return std::ranges::equal(merges, apply.merges, {}, [&](std::int32_t m) { return m + ref.delta; });
  };
  for (const std::int32_t b : apply.blocks) {
    const std::size_t first = deliveries_.size();
    for (const std::int32_t m : apply.merges) {
      const std::span<const Use> uses = uses_->find(role, b, n + m);
      for (const Use& use : uses) {
        const OpRef ref{m + use.later, use.item};
        if (deliveries_.size() == first || deliveries_.back().op != ref)
          deliveries_.push_back({b, ref, use.part});
      }
      if (uses.size() == 1 && whole(deliveries_.back().op)) break;
    }
  }
  return deliveries_.size() > before;
}

std::int64_t CompiledPlan::apply_number(std::int64_t n, std::size_t k) const {
  return first_apply_[index_of(n)] + iteration(n).applies[k].rank;
}

std::int64_t CompiledPlan::applies_before(std::int64_t n, std::int64_t position) const {
  const ResolvedIteration& here = iteration(n);
  const auto at = [&](std::int32_t k) { return here.applies[static_cast<std::size_t>(k)].at; };
  return first_apply_[index_of(n)] +
         (std::ranges::lower_bound(here.apply_by_rank, position, {}, at) - here.apply_by_rank.begin());
}

std::int64_t CompiledPlan::applies_until(std::int64_t n, std::int64_t position) const {
  return applies_before(n, position + 1);
}

CompiledPlan::Place CompiledPlan::op_place(std::int64_t number) const {
  const std::int64_t n = std::ranges::upper_bound(first_op_, number) - first_op_.begin() - 1;
  return {n, static_cast<std::size_t>(number - first_op_[index_of(n)])};
}

CompiledPlan::Place CompiledPlan::apply_place(std::int64_t number) const {
  const std::int64_t n = std::ranges::upper_bound(first_apply_, number) - first_apply_.begin() - 1;
  const std::int64_t rank = number - first_apply_[index_of(n)];
  return {n, static_cast<std::size_t>(iteration(n).apply_by_rank[static_cast<std::size_t>(rank)])};
}

const ResolvedOp& CompiledPlan::op(std::int64_t number) const {
  const Place place = op_place(number);
  return iteration(place.iteration).ops[place.item];
}

const ResolvedApply& CompiledPlan::apply(std::int64_t number) const {
  const Place place = apply_place(number);
  return iteration(place.iteration).applies[place.item];
}

std::int64_t CompiledPlan::apply_moment(std::int64_t number) const {
  const Place place = apply_place(number);
  return moment(place.iteration, iteration(place.iteration).applies[place.item].at);
}

std::string CompiledPlan::op_name(const Place& place) const {
  return slot_name(slot_of(place.iteration)) + ".ops[" + std::to_string(place.item) + "]";
}

std::string CompiledPlan::apply_name(const Place& place) const {
  return slot_name(slot_of(place.iteration)) + ".applies[" + std::to_string(place.item) + "]";
}

}  // namespace gradweave
