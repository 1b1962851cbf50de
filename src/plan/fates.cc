#include "plan/fates.h"

#include <algorithm>

namespace gradweave {

template <typename Visit>
void BlockFates::for_each_listing(Visit visit) const {
  for (std::size_t s = 0; s < plan_.slots.size(); ++s) {
    const KnownIteration& slot = plan_.slots[s];
    const auto at = static_cast<std::int32_t>(s);
    for (std::size_t k = 0; k < slot.ops.size(); ++k) {
      for (const std::int32_t b : slot.ops[k].blocks)
        visit(b, Listing{Listing::Kind::kOp, at, static_cast<std::int32_t>(k)});
    }
    for (std::size_t k = 0; k < slot.applies.size(); ++k) {
      for (const std::int32_t b : slot.applies[k].blocks) {
        visit(b, Listing{Listing::Kind::kApply, at, static_cast<std::int32_t>(k)});
      }
    }
    for (const std::int32_t b : slot.dropped) visit(b, Listing{Listing::Kind::kDropped, at, 0});
  }
}

BlockFates::BlockFates(const Unrolled& plan) : plan_(plan) {
  first_.assign(plan_.blocks.size() + 1, 0);
  for_each_listing([&](std::int32_t b, const Listing&) { ++first_[static_cast<std::size_t>(b) + 1]; });
  for (std::size_t b = 1; b < first_.size(); ++b) first_[b] += first_[b - 1];
  listings_.resize(first_.back());
  std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
  for_each_listing([&](std::int32_t b, const Listing& listing) {
    listings_[next[static_cast<std::size_t>(b)]++] = listing;
  });
}

void BlockFates::collect(std::int32_t block) {
  block_ = block;
  fates_.assign(static_cast<std::size_t>(plan_.checked), {});
  changes_.clear();
  for (const Listing& listing : listings()) {
    const KnownIteration& slot = plan_.slots[static_cast<std::size_t>(listing.slot)];
    if (listing.kind == Listing::Kind::kDropped) {
      for_each_met(listing.slot, {0}, [&](std::int64_t, std::int64_t n) { fate(n).dropped.add(0); });
    } else if (listing.kind == Listing::Kind::kOp) {
      collect_op(listing, slot.ops[static_cast<std::size_t>(listing.item)]);
    } else {
      collect_apply(listing, slot.applies[static_cast<std::size_t>(listing.item)]);
    }
  }
  std::ranges::sort(changes_, {}, &Change::number);
}

void BlockFates::collect_op(const Listing& listing, const KnownOp& op) {
  if (op.gathers()) return;  // rule 3 ties it to its reduce_scatter
  for_each_met(listing.slot, op.merges, [&](std::int64_t i, std::int64_t n) {
    Fate& f = fate(n);
    Use& use = op.op->payload == Payload::kGradient ? f.reduced : f.sent;
    use.add(plan_.op_number(i, static_cast<std::size_t>(listing.item)));
  });
}

void BlockFates::collect_apply(const Listing& listing, const KnownApply& apply) {
  const Source source = apply.apply->source;
  std::int64_t last = -1;
  for_each_met(listing.slot, apply.merges, [&](std::int64_t i, std::int64_t n) {
    Fate& f = fate(n);
    const std::int64_t number = plan_.apply_number(i, static_cast<std::size_t>(listing.item));
    Use& use = source == Source::kReducedGradient ? f.applied
               : source == Source::kLocalGradient ? f.local
                                                  : f.averaged;
    use.add(number);
    f.corrected |= source == Source::kReducedGradient && apply.apply->correction == Correction::kLocal;
    if (number != last) changes_.push_back({number, source, apply.apply->mode});
    last = number;
  });
}

}  // namespace gradweave
