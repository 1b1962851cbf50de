// Rules 2, 4, 5 and 6 of one block after another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/compiled_plan.h"
#include "plan/facts.h"
#include "plan/fates.h"

namespace gradweave {

// One message for each kind of fault of a block: its other iterations have the same cause.
enum class Fault : std::uint8_t {
  kFate,
  kUse,
  kSplit,
  kLocal,
  kSent,
  kAveraged,
  kAnchored,
  kRelease,
  kBetween,
  kOverlap,
  kStep,
  kCorrected,
  kCount
};

// What the rules of a block share.
class BlockCheck {
 public:
  BlockCheck(const CompiledPlan& compiled, Report& report);

  // Goes on to `block`.
  void begin(std::int32_t block);

  // Reports what is wrong with iteration n of the block, once for each kind.
  void fault(Fault kind, int rule, std::int64_t n, const std::string& what, const std::string& remedy);

  // Notes that an apply uses the result of an op, of the gradient or value of iteration n. Rule 4: all of it alike.
  void use(std::int64_t n, std::int64_t apply, std::int64_t op);

  // Returns the number of the optimizer's step, among all at iteration_end, that an apply there is a part of.
  std::int64_t step_of(std::int64_t apply) const { return step_of_[static_cast<std::size_t>(apply)]; }

  const CompiledPlan& plan;
  BlockFates fates;
  Facts facts;

 private:
  Report& report_;
  std::vector<std::int64_t> step_of_;   // per apply: averages before it; they part the optimizer's steps
  std::vector<std::int8_t> corrected_;  // per op: whether what it brings is corrected; -1: not yet known
  std::array<bool, static_cast<std::size_t>(Fault::kCount)> faults_{};
};

// Rules 2 and 4: the gradient of iteration n has one fate, and its result is used once, when it is there.
void check_gradient(BlockCheck& block, std::int64_t n);

// Rule 4: an op's generation is consumed by one apply, since a sum can't be taken apart.
void check_generations(BlockCheck& block);

// Rules 4 and 5 for parameters that are averaged after iteration n.
void check_values(BlockCheck& block, std::int64_t n);

// Rule 6: nothing changes the block between a reading and the apply that replaces it.
void check_order(BlockCheck& block);

// Rule 6: at one iteration_end the block is stepped once, by gradients that add up.
void check_steps(BlockCheck& block);

// Rule 6: a block that is stepped locally is averaged in every period.
void check_averaged(BlockCheck& block);

}  // namespace gradweave
