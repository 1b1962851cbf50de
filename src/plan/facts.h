// What the validator reports of a valid plan: staleness that is mixed, generations alive, memory.
//
// Memory counts what the engine must hold beyond parameters, gradients and optimizer states of plain
// training, in the plan's own order of points:
//   a generation of a block   from backward_end of its first iteration to its apply. One of them is .grad
//                             itself, so only those beyond the first count; with correction `local` each
//                             counts twice (the sum in flight, and the own part that is taken off it)
//   a sent copy               mode `correct`: from the local step whose value is read to the apply of the
//                             average; of a compressed average the rank's own encoded message, of two levels that of
//                             its shard, beside the copy
//   an anchor                 of every block whose averages are compressed or go through an outer optimizer,
//                             for ever; with outer momentum twice; of two levels of the rank's shard
//   a residual                of every block that is ever dropped, for ever
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/compiled_plan.h"

namespace gradweave {

class Facts {
 public:
  explicit Facts(const CompiledPlan& compiled);

  // One apply of reduced gradients of a block, with the first iteration that it consumes.
  struct Generation {
    std::int64_t apply = 0;
    std::int64_t first = 0;
    std::int64_t copies = 1;
  };

  // The gradient of iteration n of some block is applied in `iteration`.
  void add_use(std::int64_t n, std::int64_t iteration);
  void add_generations(std::int32_t block, std::vector<Generation> generations);
  // `op` sends the block as it is after the apply numbered `read`; the apply numbered `apply` corrects it.
  void add_sent(std::int32_t block, const ResolvedOp& op, std::int64_t read, std::int64_t apply);
  void add_residual(std::int32_t block);

  PlanFacts result();

 private:
  using Change = std::pair<std::int64_t, std::int64_t>;  // (moment, bytes more or less)

  std::int64_t bytes_of(std::int32_t block) const {
    return compiled_.blocks[static_cast<std::size_t>(block)].bytes;
  }

  std::int64_t gain_bytes_of(std::int32_t block) const;

  const CompiledPlan& compiled_;
  PlanFacts facts_;
  std::vector<std::int64_t> applied_in_;  // per checked iteration; -1: not yet known
  std::vector<Change> changes_;
  std::int64_t residual_bytes_ = 0;
  std::int64_t anchor_bytes_ = 0;
  std::int32_t anchored_ = -1;  // the last block that has one
};

}  // namespace gradweave
