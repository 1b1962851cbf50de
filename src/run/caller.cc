// What the caller does to gradients in between is found, and means what he means by it.
#include <algorithm>

#include "gradweave/error.h"
#include "run/run.h"

namespace gradweave::run {

bool Run::taken_away() const {
  if (phase_ != Phase::kReduced || steps().synchronous) return false;
  bool any = false;
  const auto tensors = static_cast<std::int32_t>(plan().index.tensors.size());
  for (std::int32_t t = 0; t < tensors; ++t) {
    if (!plan_->arrivals.present(t)) continue;
    any = true;
    if (host_.kept(t) != Kept::kGone) return false;
  }
  return any;
}

// An edit of a gradient that was handed over would be lost without a word.
void Run::check_kept() {
  const RunIteration& now = here();
  const auto check = [&](std::int32_t tensor) REQUIRES(compute_thread) {
    if (!plan_->arrivals.present(tensor)) return;
    const Kept kept = host_.kept(tensor);
    if (kept == Kept::kSame) return;
    throw InvalidInput(std::string("its gradient was ") + (kept == Kept::kGone ? "removed" : "changed") +
                           " between backward() and step(), but this plan had handed it over already (" +
                           cursor_.text() + ")",
                       plan_->context.text_of(tensor),
                       "clip with gradweave.clip_grad_norm_; to drop a batch, call "
                       "model.gradweave.skip_step() in place of step(), or set all gradients to None; else "
                       "choose a scheme that waits for the whole gradient, as ddp (C++: Session's "
                       "clip_grad_norm(), skip_step())");
  };
  for (const auto& applies : now.at_backward) {
    for (std::int32_t a : applies)
      std::ranges::for_each(now.applies[static_cast<std::size_t>(a)].tensors, check);
  }
  for (std::size_t b = 0; b < now.gradient.size(); ++b) {
    if (now.gradient_outside_end[b]) check(plan().block_tensor[b]);
  }
}

// Nothing that holds a gradient of this iteration is applied. What is due at its end of others is put in place
// again: it may have been taken away too.
void Run::leave_out() {
  const RunIteration& now = here();
  for (const auto& applies : now.at_backward) {
    for (std::int32_t a : applies) {
      const RunApply& apply = now.applies[static_cast<std::size_t>(a)];
      if (apply.source == Source::kAveragedParameter || apply.merges.back() < 0) continue;
      throw InvalidInput("this batch can't be dropped: the plan in force has stepped " +
                             plan_->context.text_of(apply.tensors.front()) +
                             " by its gradient in the backward",
                         cursor_.text(),
                         "look at the loss before backward(), or choose a scheme that steps in step() or in "
                         "the next forward");
    }
  }
  plan_->flags.leave_out(cursor_.now());
  plan_->outbox.leave_out();
  for (std::int32_t t : all_tensors()) {
    if (plan_->arrivals.has_come(t)) host_.drop_gradient(t);
  }
  plan_->applies.forget_places();
  for (std::int32_t a : now.gradients_at_end)
    plan_->applies.put_reduced(now.applies[static_cast<std::size_t>(a)]);
}

}  // namespace gradweave::run
