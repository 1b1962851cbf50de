// What happens to the gradient of each iteration of one block, and to the value after its local step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/unrolled.h"

namespace gradweave {

// The ops and applies of one kind that concern (block, iteration n): how many, and the last one's number.
struct Use {
  std::int32_t count = 0;
  std::int64_t number = -1;
  void add(std::int64_t n) {
    ++count;
    number = n;
  }
};

struct Fate {
  Use reduced, dropped, local, applied;  // ops; -; applies; applies
  Use sent, averaged;                    // parameters: op that reads them; apply of the average
  bool corrected = false;                // `applied` has correction local
};

// Where a block is listed.
struct Listing {
  enum class Kind : std::uint8_t { kOp, kApply, kDropped } kind;
  std::int32_t slot;
  std::int32_t item;
};

// An apply that changes the block's parameters.
struct Change {
  std::int64_t number;  // of the apply
  Source source;
  Mode mode;
};

// The fates of one block after another.
class BlockFates {
 public:
  // The plan must outlive the object. O(size of the plan).
  explicit BlockFates(const Unrolled& plan);

  // Collects the fates of `block`. O(its uses in the unrolled plan, log factors aside).
  void collect(std::int32_t block);

  std::int32_t block() const { return block_; }
  const Fate& of(std::int64_t n) const { return fates_[static_cast<std::size_t>(n)]; }  // n < plan.checked
  const std::vector<Change>& changes() const { return changes_; }  // in the order in which they pass
  std::span<const Listing> listings() const {
    const auto b = static_cast<std::size_t>(block_);
    return std::span(listings_).subspan(first_[b], first_[b + 1] - first_[b]);
  }

  // Calls visit(i, n) for every iteration i that runs `slot` and every iteration n that `merges` meets from
  // there.
  template <typename Visit>
  void for_each_met(std::int32_t slot, const std::vector<std::int32_t>& merges, Visit visit) const {
    for (std::int64_t i = slot; i < plan_.horizon; i = plan_.next(i)) {
      for (const std::int32_t m : merges) {
        if (i + m >= 0 && i + m < plan_.checked) visit(i, i + m);
      }
    }
  }

 private:
  template <typename Visit>
  void for_each_listing(Visit visit) const;
  void collect_op(const Listing& listing, const KnownOp& op);
  void collect_apply(const Listing& listing, const KnownApply& apply);
  Fate& fate(std::int64_t n) { return fates_[static_cast<std::size_t>(n)]; }

  const Unrolled& plan_;
  std::vector<std::size_t> first_;  // per block, into listings_
  std::vector<Listing> listings_;
  std::int32_t block_ = 0;
  std::vector<Fate> fates_;  // per checked iteration
  std::vector<Change> changes_;
};

}  // namespace gradweave
