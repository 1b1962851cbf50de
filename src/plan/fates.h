// What happens to the gradient of each iteration of one block, and to the value after its local step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/compiled_plan.h"

namespace gradweave {

// The ops and applies of one kind that concern (block, iteration n): how many, and the last one's number.
struct Tally {
  std::int32_t count = 0;
  std::int64_t number = -1;
  void add(std::int64_t n) {
    ++count;
    number = n;
  }
};

struct Fate {
  Tally reduced, dropped, local, applied;  // ops; -; applies; applies
  Tally sent, averaged;                    // parameters: op that reads them; apply of the average
  Tally between;                           // of two levels: op between nodes of what is sent
  bool corrected = false;                  // `applied` has correction local
};

// An apply that changes the block's parameters.
struct Change {
  std::int64_t number;  // of the apply
  Source source;
  Mode mode;
  bool corrected;  // a reduced gradient with correction local
};

// The fates of one block after another.
class BlockFates {
 public:
  // The plan must outlive the object.
  explicit BlockFates(const CompiledPlan& plan) : plan_(plan) {}

  // Collects the fates of `block`. O(its uses in the unrolled plan, log factors aside).
  void collect(std::int32_t block);

  std::int32_t block() const { return block_; }
  const Fate& of(std::int64_t n) const { return fates_[static_cast<std::size_t>(n)]; }  // n < plan.checked
  const std::vector<Change>& changes() const { return changes_; }  // in the order in which they pass

 private:
  void add(const Use& use, std::int64_t n);

  const CompiledPlan& plan_;
  std::int32_t block_ = 0;
  std::vector<Fate> fates_;  // per checked iteration
  std::vector<Change> changes_;
};

}  // namespace gradweave
