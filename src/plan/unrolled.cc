#include "plan/unrolled.h"

namespace gradweave {
namespace {

constexpr double kMaxWork = 2e8;  // (block, gradient) pairs of the unrolled plan

}  // namespace

Unrolled::Unrolled(ResolvedPlan resolved, Report& report) : ResolvedPlan(std::move(resolved)) {
  if (period > 0 && !report.full()) measure(report);
}

void Unrolled::measure(Report& report) {
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

std::int64_t Unrolled::apply_number(std::int64_t n, std::size_t k) const {
  return first_apply_[index_of(n)] + iteration(n).applies[k].rank;
}

std::int64_t Unrolled::applies_before(std::int64_t n, std::int64_t position) const {
  const ResolvedIteration& here = iteration(n);
  const auto at = [&](std::int32_t k) { return here.applies[static_cast<std::size_t>(k)].at; };
  return first_apply_[index_of(n)] +
         (std::ranges::lower_bound(here.apply_by_rank, position, {}, at) - here.apply_by_rank.begin());
}

std::int64_t Unrolled::applies_until(std::int64_t n, std::int64_t position) const {
  return applies_before(n, position + 1);
}

Unrolled::Place Unrolled::op_place(std::int64_t number) const {
  const std::int64_t n = std::ranges::upper_bound(first_op_, number) - first_op_.begin() - 1;
  return {n, static_cast<std::size_t>(number - first_op_[index_of(n)])};
}

Unrolled::Place Unrolled::apply_place(std::int64_t number) const {
  const std::int64_t n = std::ranges::upper_bound(first_apply_, number) - first_apply_.begin() - 1;
  const std::int64_t rank = number - first_apply_[index_of(n)];
  return {n, static_cast<std::size_t>(iteration(n).apply_by_rank[static_cast<std::size_t>(rank)])};
}

const ResolvedOp& Unrolled::op(std::int64_t number) const {
  const Place place = op_place(number);
  return iteration(place.iteration).ops[place.item];
}

const ResolvedApply& Unrolled::apply(std::int64_t number) const {
  const Place place = apply_place(number);
  return iteration(place.iteration).applies[place.item];
}

std::int64_t Unrolled::apply_moment(std::int64_t number) const {
  const Place place = apply_place(number);
  return moment(place.iteration, iteration(place.iteration).applies[place.item].at);
}

std::string Unrolled::op_name(std::int64_t number) const {
  const Place place = op_place(number);
  return slot_name(slot_of(place.iteration)) + ".ops[" + std::to_string(place.item) + "]";
}

std::string Unrolled::apply_name(std::int64_t number) const {
  const Place place = apply_place(number);
  return slot_name(slot_of(place.iteration)) + ".applies[" + std::to_string(place.item) + "]";
}

}  // namespace gradweave
