// What the caller does to gradients and parameters in between is found, and means what he means by it.
#include <algorithm>

#include "gradweave/error.h"
#include "run/run.h"

namespace gradweave::run {

bool Run::taken_away() const {
  if (phase_ != Phase::kReduced || synchronous_) return false;
  bool any = false;
  for (std::int32_t t : all_tensors_) {
    if (!present_[static_cast<std::size_t>(t)]) continue;
    any = true;
    if (host_.kept(t) != Kept::kGone) return false;
  }
  return any;
}

// An edit of a gradient that was handed over would be lost without a word.
void Run::check_kept() {
  const CalendarIteration& now = here();
  const auto check = [&](std::int32_t tensor) {
    if (!present_[static_cast<std::size_t>(tensor)]) return;
    const Kept kept = host_.kept(tensor);
    if (kept == Kept::kSame) return;
    throw InvalidInput(std::string("its gradient was ") + (kept == Kept::kGone ? "removed" : "changed") +
                           " between backward() and step(), but this plan had handed it over already (" +
                           iteration_text() + ")",
                       tensor_text(tensor),
                       "clip with gradweave.clip_grad_norm_; to drop a batch, call "
                       "model.gradweave.skip_step() in place of step(), or set all gradients to None; else "
                       "choose a scheme that waits for the whole gradient, as ddp");
  };
  for (const auto& applies : now.at_backward) {
    for (std::int32_t a : applies)
      std::ranges::for_each(now.applies[static_cast<std::size_t>(a)].tensors, check);
  }
  for (std::size_t b = 0; b < now.gradient.size(); ++b) {
    if (now.gradient_outside_end[b]) check(tables_->calendar.block_tensor[b]);
  }
}

// Nothing that holds a gradient of this iteration is applied. What is due at its end of others is put in place
// again: it may have been taken away too.
void Run::leave_out() {
  const CalendarIteration& now = here();
  for (const auto& applies : now.at_backward) {
    for (std::int32_t a : applies) {
      const CalendarApply& apply = now.applies[static_cast<std::size_t>(a)];
      if (apply.source == Source::kAveragedParameter || apply.merges.back() < 0) continue;
      throw InvalidInput("this batch can't be dropped: the plan in force has stepped " +
                             tensor_text(apply.tensors.front()) + " by its gradient in the backward",
                         iteration_text(),
                         "look at the loss before backward(), or choose a scheme that steps in step() or in "
                         "the next forward");
    }
  }
  flags_at(iteration_).spoilt = true;
  last_spoilt_ = iteration_;
  leave_no_residual();
  for (std::int32_t t : all_tensors_) {
    if (ready_[static_cast<std::size_t>(t)]) host_.drop_gradient(t);
  }
  std::ranges::fill(put_, -1);
  for (std::int32_t a : now.gradients_at_end) apply_reduced(now.applies[static_cast<std::size_t>(a)]);
}

// Updates that are on their way at the end of an iteration are meant for the parameters as they are then.
void Run::note_parameters() {
  for (const CalendarApply& apply : tables_->calendar[iteration_ + 1].applies) {
    if (apply.at.kind != PointKind::kForwardStart || apply.source != Source::kReducedGradient) continue;
    for (std::int32_t t : apply.tensors) host_.note_parameter(t);
  }
}

void Run::check_parameters(const CalendarApply& apply) {
  for (std::int32_t t : apply.tensors) {
    if (!host_.parameter_changed(t)) continue;
    throw InvalidInput(
        "it was changed after step(), while its update was on its way (" + iteration_text() + ")",
        tensor_text(t), "call model.gradweave.synchronize() before changing parameters");
  }
}

}  // namespace gradweave::run
