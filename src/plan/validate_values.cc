// Rules 4, 5 and 6 for parameters that are averaged.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "plan/block_check.h"

namespace gradweave {
namespace {

// The op that compresses what is sent, if any does.
const ResolvedOp& carrier(const BlockCheck& block, const Fate& f) {
  return block.plan.op(f.between.count > 0 ? f.between.number : f.sent.number);
}

void check_release(BlockCheck& block, std::int64_t n, std::int64_t number, std::int64_t local) {
  const CompiledPlan& plan = block.plan;
  const CompiledPlan::Place place = plan.op_place(number);
  const ResolvedOp& op = plan.op(number);
  const std::int64_t release = plan.moment(place.iteration + op.op->release.point.iteration, op.release);
  // Applies at iteration_end run when the last backward has ended: a release there is not before them.
  const ResolvedApply& step = plan.apply(local);
  const std::int64_t at = step.at == plan.iteration_end() ? step.at - 1 : step.at;
  if (release >= plan.moment(plan.apply_place(local).iteration, at)) return;
  block.fault(Fault::kRelease, 5, n,
              plan.op_name(number) + " is released at " + plan.point_name(op.op->release.point) +
                  ", before the parameters that it reads exist",
              "release it at the point of " + plan.apply_name(local) + " or later");
}

// Rule 6: what was gained since an anchor can only be added.
void check_anchored(BlockCheck& block, std::int64_t n) {
  const CompiledPlan& plan = block.plan;
  const Fate& f = block.fates.of(n);
  const bool compressed = carrier(block, f).compressed();
  if (!compressed && !plan.plan.outer) return;
  if (plan.apply(f.averaged.number).apply->mode == Mode::kCorrect) return;
  block.fault(Fault::kAnchored, 6, n,
              plan.apply_name(f.averaged.number) + " replaces parameters by an average " +
                  (compressed ? "that is compressed" : "that the outer optimizer changes"),
              "apply it with mode 'correct'");
}

void check_sent(BlockCheck& block, std::int64_t n) {
  const CompiledPlan& plan = block.plan;
  const Fate& f = block.fates.of(n);
  if (f.sent.count == 0) {
    if (f.averaged.count > 0) {
      block.fault(Fault::kSent, 4, n,
                  plan.apply_name(f.averaged.number) +
                      " applies averaged parameters of this iteration, which no op sends",
                  "name the iteration whose value was read in its merges");
    }
    return;
  }
  if (f.averaged.count != 1) {
    block.fault(Fault::kSent, 4, n,
                "the averaged parameters of " + plan.op_name(f.sent.number) + " are applied " +
                    std::to_string(f.averaged.count) + " times",
                "apply them once");
    return;
  }
  block.use(n, f.averaged.number, f.sent.number);
  check_anchored(block, n);
  if (f.local.count == 0) {
    block.fault(
        Fault::kSent, 5, n,
        plan.op_name(f.sent.number) + " reads the parameters after a local step that is not in the plan",
        "name an iteration with an apply of source local_gradient in its merges");
    return;
  }
  check_release(block, n, f.sent.number, f.local.number);
}

void check_between(BlockCheck& block, std::int64_t n, std::int64_t read, std::int64_t apply) {
  const CompiledPlan& plan = block.plan;
  const std::vector<Change>& changes = block.fates.changes();
  const auto first = std::ranges::upper_bound(changes, read, {}, &Change::number);
  const auto last = std::ranges::lower_bound(changes, apply, {}, &Change::number);
  if (first >= last || last == changes.end() || last->mode == Mode::kCorrect) return;
  const auto change =
      std::find_if(first, last, [](const Change& c) { return c.source != Source::kAveragedParameter; });
  if (change == last) return;
  block.fault(Fault::kBetween, 6, n,
              plan.apply_name(change->number) + " changes the parameters between their reading and " +
                  plan.apply_name(apply) + ", which replaces them",
              "apply the average before that, or with mode 'correct'");
}

}  // namespace

void check_values(BlockCheck& block, std::int64_t n) {
  check_sent(block, n);
  const Fate& f = block.fates.of(n);
  if (f.sent.count > 1) {
    block.fault(Fault::kAveraged, 4, n,
                "the parameters after this iteration are sent " + std::to_string(f.sent.count) + " times",
                "send them once");
  }
}

void check_order(BlockCheck& block) {
  const CompiledPlan& plan = block.plan;
  std::int64_t landed = -1;                                  // the apply of the average that was sent before
  std::vector<std::pair<std::int64_t, std::int64_t>> reads;  // (local apply, n), in the order of reading
  for (std::int64_t n = 0; n < plan.checked; ++n) {
    if (block.fates.of(n).local.count == 1) reads.emplace_back(block.fates.of(n).local.number, n);
  }
  std::ranges::sort(reads);
  for (const auto& [read, n] : reads) {
    const Fate& f = block.fates.of(n);
    if (f.sent.count != 1 || f.averaged.count != 1) continue;
    if (landed > read) {
      block.fault(Fault::kOverlap, 6, n,
                  "the parameters are read again before the average of an earlier reading is applied by " +
                      plan.apply_name(landed),
                  "list that apply before the local step whose value is read");
    }
    landed = f.averaged.number;
    check_between(block, n, read, f.averaged.number);
    if (plan.apply(f.averaged.number).apply->mode == Mode::kCorrect) {
      block.facts.add_sent(block.fates.block(), carrier(block, f), read, f.averaged.number);
    }
  }
}

void check_steps(BlockCheck& block) {
  const CompiledPlan& plan = block.plan;
  const std::vector<Change>& changes = block.fates.changes();
  for (auto first = changes.begin(), last = first; first != changes.end(); first = last) {
    const std::int64_t n = plan.apply_place(first->number).iteration;
    if (n >= plan.checked) break;  // not all of its applies are known
    last = std::next(first);
    if (first->source == Source::kAveragedParameter || plan.apply(first->number).at != plan.iteration_end())
      continue;
    bool local = false, corrected = false, plain = false, apart = false;
    for (last = first; last != changes.end() && plan.apply_place(last->number).iteration == n; ++last) {
      if (last->source == Source::kAveragedParameter) continue;
      (last->source == Source::kLocalGradient ? local : last->corrected ? corrected : plain) = true;
      apart |= block.step_of(last->number) != block.step_of(first->number);
    }
    if (apart) {
      block.fault(Fault::kStep, 6, n, "is stepped twice at one iteration_end, before an average and after it",
                  "list applies of its gradients one after another");
    } else if (corrected && !local) {
      block.fault(Fault::kStep, 6, n, "has a correction at an iteration_end without a local step to correct",
                  "apply its local gradient at the same iteration_end");
    } else if (local && plain) {
      block.fault(Fault::kStep, 6, n,
                  "is stepped by its local and by a reduced gradient at one iteration_end",
                  "apply the reduced one with correction 'local', or at another point");
    }
  }
}

void check_averaged(BlockCheck& block) {
  const CompiledPlan& plan = block.plan;
  bool stepped = false;
  bool averaged = false;
  std::array<bool, 2> sent{};  // exact; compressed
  std::int64_t where = plan.prologue;
  for (std::int64_t n = 0; n < plan.checked; ++n) {
    const Fate& f = block.fates.of(n);
    if (f.sent.count == 0) continue;
    sent[carrier(block, f).compressed() ? 1 : 0] = true;
    if (!sent[0] || !sent[1]) continue;
    block.fault(Fault::kAnchored, 6, n, "is averaged both compressed and exact: its anchor would not follow",
                "compress all averages of a block, or none");
    break;
  }
  for (std::int64_t n = plan.prologue; n < plan.prologue + plan.period; ++n) {
    const Fate& f = block.fates.of(n);
    averaged |= f.sent.count > 0;
    if (f.local.count == 0 || f.corrected) continue;
    if (!stepped) where = n;
    stepped = true;
  }
  if (stepped && !averaged) {
    block.fault(Fault::kAveraged, 6, where, "is stepped locally but its parameters are never averaged",
                "add an op of payload parameter and an apply of its average to the period");
  }
}

}  // namespace gradweave
