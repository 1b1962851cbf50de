#include "simulate/carriers.h"

#include <algorithm>
#include <tuple>

namespace gradweave {

void CarrierTable::freeze() {
  begin_.clear();
  for (const Carrier& carrier : carriers_) {
    const auto block = static_cast<std::size_t>(carrier.block);
    if (begin_.size() < block + 2) begin_.resize(block + 2, 0);
    ++begin_[block + 1];
  }
  for (std::size_t b = 1; b < begin_.size(); ++b) begin_[b] += begin_[b - 1];
  std::vector<Carrier> by_block(carriers_.size());
  std::vector<std::size_t> next = begin_;
  for (const Carrier& carrier : carriers_)
    by_block[next[static_cast<std::size_t>(carrier.block)]++] = carrier;
  carriers_ = std::move(by_block);
  for (std::size_t b = 0; b + 1 < begin_.size(); ++b) {
    const std::span<Carrier> own(carriers_.data() + begin_[b], begin_[b + 1] - begin_[b]);
    if (!std::ranges::is_sorted(own)) std::ranges::sort(own);
  }
}

std::span<const Carrier> CarrierTable::find(std::int32_t block, std::int64_t data) const {
  const auto b = static_cast<std::size_t>(block);
  if (b + 1 >= begin_.size()) return {};
  const std::span<const Carrier> own(carriers_.data() + begin_[b], begin_[b + 1] - begin_[b]);
  const auto found = std::ranges::equal_range(own, data, {}, &Carrier::data);
  return {found.begin(), found.end()};
}

Carriers::Carriers(const Plan& plan, const ResolvedPlan& resolved, const Program& calendar)
    : resolved_(resolved), calendar_(calendar) {
  for (std::int64_t n = 0; n < calendar.head + calendar.period + calendar.reach; ++n) {
    const Iteration& iteration = iteration_at(plan, n);
    for (std::size_t i = 0; i < iteration.ops.size(); ++i) {
      const Op& op = iteration.ops[i];
      const Cargo cargo = op.payload == Payload::kParameter             ? Cargo::kParameter
                          : op.collective == Collective::kReduceScatter ? Cargo::kScattered
                                                                        : Cargo::kGradient;
      add(cargo, op.blocks, op.merges, n, i);
    }
    for (std::size_t a = 0; a < iteration.applies.size(); ++a) {
      const Apply& apply = iteration.applies[a];
      if (apply.source == Source::kLocalGradient) add(Cargo::kLocalApply, apply.blocks, apply.merges, n, a);
    }
  }
  for (CarrierTable& table : tables_) table.freeze();
  number_ops(plan);
}

void Carriers::add(Cargo cargo, const std::vector<std::int32_t>& blocks,
                   const std::vector<std::int32_t>& merges, std::int64_t n, std::size_t item) {
  for (const std::int32_t block : blocks) {
    for (const std::int32_t merge : merges) {
      if (n + merge >= 0) table(cargo).add({block, n + merge, n, static_cast<std::int32_t>(item)});
    }
  }
}

void Carriers::number_ops(const Plan& plan) {
  std::vector<std::int32_t> count(resolved_.concurrency.size());
  for (std::int64_t n = 0; n < calendar_.head + calendar_.period; ++n) {
    position_begin_.push_back(positions_.size());
    std::ranges::fill(count, 0);
    const Iteration& iteration = iteration_at(plan, n);
    const std::vector<ResolvedOp>& ops = resolved_.ops_of(n);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const auto link = static_cast<std::size_t>(ops[i].link);
      positions_.push_back(exists(iteration.ops[i].merges, n) ? count[link]++ : -1);
    }
  }
}

OpPlace Carriers::reference(const Carrier& carrier, std::int64_t from) const {
  const auto item = static_cast<std::size_t>(carrier.item);
  return {static_cast<std::int32_t>(carrier.iteration - from), resolved_.ops_of(carrier.iteration)[item].link,
          positions_[position_begin_[calendar_.code_of(carrier.iteration)] + item]};
}

const std::vector<OpPlace>& Carriers::ops_for(Cargo cargo, const std::vector<std::int32_t>& blocks,
                                              const std::vector<std::int32_t>& merges, std::int64_t n) {
  refs_.clear();
  for (const std::int32_t block : blocks) {
    for (const std::int32_t merge : merges) {
      for (const Carrier& carrier : find(cargo, block, n + merge)) refs_.push_back(reference(carrier, n));
    }
  }
  // The last op of a link comes first.
  std::ranges::sort(refs_, {},
                    [](const OpPlace& ref) { return std::tuple(ref.link, -ref.iteration, -ref.position); });
  const auto implied = [&](const OpPlace& kept, const OpPlace& ref) {
    return kept.link == ref.link &&
           (resolved_.concurrency[static_cast<std::size_t>(ref.link)] == 1 || kept == ref);
  };
  const auto rest = std::ranges::unique(refs_, implied);
  refs_.erase(rest.begin(), rest.end());
  return refs_;
}

}  // namespace gradweave
