// Rules 2 and 4 for gradients: each has one fate, and what is reduced of it is applied once.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "plan/block_check.h"

namespace gradweave {
namespace {

std::string fates_of(const Fate& f, const CompiledPlan& plan) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (f.reduced.count > 0)
    add(std::to_string(f.reduced.count) + " times reduced, last by " + plan.op_name(f.reduced.number));
  if (f.dropped.count > 0) add(std::to_string(f.dropped.count) + " times dropped");
  if (f.local.count > 0) {
    add(std::to_string(f.local.count) + " times applied locally, last by " + plan.apply_name(f.local.number));
  }
  return text;
}

// Rule 2.
void check_fate(BlockCheck& block, std::int64_t n) {
  const Fate& f = block.fates.of(n);
  if (f.dropped.count > 0 && !block.plan.plan.residual.enabled) {
    block.fault(Fault::kFate, 2, n, "its gradient is dropped, but the plan has no residual to keep it",
                "give the plan a residual");
  }
  const std::int32_t fates = f.reduced.count + f.dropped.count + f.local.count;
  if (f.corrected ? f.reduced.count == 1 && f.local.count == 1 && f.dropped.count == 0 : fates == 1) return;
  if (fates == 0) {
    block.fault(Fault::kFate, 2, n,
                "the gradient of this iteration is neither reduced nor dropped nor applied locally",
                "add it to an op with this iteration in its merges");
  } else if (f.corrected) {
    block.fault(Fault::kFate, 2, n,
                "with correction 'local', its gradient must be reduced once and applied locally once; it is "
                "reduced " +
                    std::to_string(f.reduced.count) + " times, applied locally " +
                    std::to_string(f.local.count) + " times",
                "give it one op and one apply of source local_gradient");
  } else {
    block.fault(
        Fault::kFate, 2, n,
        "the gradient of this iteration has " + std::to_string(fates) + " fates: " + fates_of(f, block.plan),
        "leave it one");
  }
}

// When the gradient of iteration n exists.
std::int64_t computed(const BlockCheck& block, std::int64_t n) {
  const CompiledPlan& plan = block.plan;
  return plan.moment(n, plan.backward_end(plan.blocks[static_cast<std::size_t>(block.fates.block())].layer));
}

// Rule 4.
void check_use(BlockCheck& block, std::int64_t n) {
  const CompiledPlan& plan = block.plan;
  const Fate& f = block.fates.of(n);
  if (f.reduced.count == 0 && f.applied.count > 0) {
    block.fault(
        Fault::kUse, 4, n,
        plan.apply_name(f.applied.number) + " applies the gradient of this iteration, which no op reduces",
        "remove it there, or reduce it");
  } else if (f.reduced.count == 1 && f.applied.count != 1) {
    const std::string op = plan.op_name(f.reduced.number);
    if (f.applied.count == 0) {
      block.fault(Fault::kUse, 4, n, "the gradient that " + op + " reduces is never applied",
                  "add it to an apply with the same merges");
    } else {
      block.fault(Fault::kUse, 4, n,
                  "the gradient that " + op + " reduces is applied " + std::to_string(f.applied.count) +
                      " times, last by " + plan.apply_name(f.applied.number),
                  "apply it once");
    }
  }
  if (f.local.count > 0 && plan.apply_moment(f.local.number) < computed(block, n)) {
    block.fault(Fault::kLocal, 4, n,
                plan.apply_name(f.local.number) + " applies a gradient that is not computed yet",
                "apply it at backward_end of its layer or later");
  } else if (f.local.count > 0 && plan.apply_place(f.local.number).iteration != n) {
    block.fault(
        Fault::kLocal, 4, n,
        plan.apply_name(f.local.number) + " applies a local gradient of another iteration, which is gone",
        "apply it at backward_end or iteration_end of its own iteration, with merges [0]");
  }
  if (f.reduced.count == 1 && f.applied.count == 1) block.use(n, f.applied.number, f.reduced.number);
  if (f.applied.count == 1) block.facts.add_use(n, plan.apply_place(f.applied.number).iteration);
}

}  // namespace

void check_gradient(BlockCheck& block, std::int64_t n) {
  check_fate(block, n);
  check_use(block, n);
}

void check_generations(BlockCheck& block) {
  const CompiledPlan& plan = block.plan;
  std::vector<std::pair<std::int64_t, std::int64_t>>
      applied;  // (op, apply of what it reduces), where both are one
  for (std::int64_t n = 0; n < plan.checked; ++n) {
    const Fate& f = block.fates.of(n);
    if (f.reduced.count == 1 && f.applied.count == 1)
      applied.emplace_back(f.reduced.number, f.applied.number);
  }
  std::ranges::sort(applied);
  const auto split = [](const auto& a, const auto& b) { return a.first == b.first && a.second != b.second; };
  const auto found = std::ranges::adjacent_find(applied, split);
  if (found == applied.end()) return;
  block.fault(Fault::kSplit, 4, plan.op_place(found->first).iteration,
              "what " + plan.op_name(found->first) + " merges is applied in parts, by " +
                  plan.apply_name(found->second) + " and " + plan.apply_name((found + 1)->second),
              "apply all its merges at once");
}

}  // namespace gradweave
