// Loss scales and the norm of the coming update.
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "gradweave/error.h"
#include "runtime/engine.h"

namespace gradweave::runtime {

void Engine::begin_unscaling() {
  inverse_scale_.reset();
  if (!unscaler_ || synchronous_) return;  // the user's scaler does it, on what was reduced
  inverse_scale_ = unscaler_();
  if (!scaled()) return;
  if (steps_in_backward_) {
    throw InvalidInput(
        "a loss scale: this plan steps parameters in the backward, before all gradients are "
        "known to be finite",
        "iteration " + std::to_string(base_ + iteration_),
        "use bfloat16, which needs no scale, or a scheme that steps in optimizer.step()");
  }
  found_inf_ = at::zeros({}, inverse_scale_.options());
  if (program_->residual.enabled) residuals_before_ = residuals_;
}

// All ranks know now whether a gradient was not finite. What it left in the residuals would stay for ever.
void Engine::end_unscaling() {
  if (scaled() && overflowed() && program_->residual.enabled) residuals_ = std::move(residuals_before_);
  residuals_before_.clear();
}

// In place, so that what is handed over and what the user reads are the same.
void Engine::unscale(const at::Tensor& gradient) {
  if (!scaled() || !gradient.defined() || gradient.layout() != c10::kStrided) return;
  const std::vector<at::Tensor> alias{gradient.detach()};
  at::_amp_foreach_non_finite_check_and_unscale_(alias, found_inf_, inverse_scale_);
}

bool Engine::iteration_overflowed(std::int64_t iteration) const {
  return used_[static_cast<std::size_t>(iteration) % used_.size()].overflow;
}

// Whether what the apply uses holds a gradient that was not finite on some rank.
bool Engine::holds_overflow(const CalendarApply& apply) const {
  if (!unscaler_) return false;
  return std::ranges::any_of(apply.merges, [&](std::int32_t m) {
    return !(draining_ && iteration_ + m >= drain_end_) && iteration_overflowed(iteration_ + m);
  });
}

// Takes away the gradients of those `tensors` that nothing sound updates in this iteration, so that the
// optimizer passes them over. Returns whether any is left.
bool Engine::drop_overflowed(const std::vector<std::int32_t>& tensors) {
  std::vector<std::uint8_t> sound(ready_.size());
  for (const CalendarApply& apply : (*program_)[iteration_].applies) {
    if (apply.at.kind != PointKind::kIterationEnd || apply.source == Source::kAveragedParameter) continue;
    // A correction adds to the local gradient of this iteration: either may be sound alone.
    const bool local = apply.source == Source::kLocalGradient || apply.correction == Correction::kLocal;
    const bool reduced = apply.source == Source::kReducedGradient;
    if (!(reduced && !holds_overflow(apply)) && !(local && !overflowed())) continue;
    for (std::int32_t t : apply.tensors) sound[static_cast<std::size_t>(t)] = 1;
  }
  bool any = false;
  for (std::int32_t t : tensors) {
    if (sound[static_cast<std::size_t>(t)]) {
      any = true;
    } else {
      parameter(t).mutable_grad().reset();
    }
  }
  return any;
}

// Hands the next iteration's ops to their links, as its beginning would do: op `op` among them is awaited
// now.
void Engine::start_early(std::int32_t op) {
  const std::int64_t next = iteration_ + 1;
  prepare(next);
  push_ops(next);
  const std::int32_t link = run_at(next, op).op->link;
  const std::lock_guard lock(exchange_->mutex);
  for (std::int32_t before = 0; before < op; ++before) {
    const OpRun& run = run_at(next, before);
    if (run.op->link != link || run.pending == 0) continue;
    throw InvalidInput("part of the gradient is sent behind " + describe(run) + ", which needs a later step",
                       "clip_grad_norm_", "choose another scheme, such as ddp");
  }
}

std::vector<std::vector<at::Tensor>> Engine::coming_gradients() {
  if (!program_ || phase_ != Phase::kReduced) {
    throw InvalidInput("there is no gradient: no backward() since the last optimizer.step()",
                       "clip_grad_norm_", "call it between backward() and step()");
  }
  std::vector<std::vector<at::Tensor>> parts(parameters_.size());
  const auto of = [&](std::int32_t tensor) -> std::vector<at::Tensor>& {
    return parts[static_cast<std::size_t>(parameter_of_[static_cast<std::size_t>(tensor)])];
  };
  for (const EndAction& action : (*program_)[iteration_].end_actions) {
    for (std::int32_t t : action.tensors) {
      if (const at::Tensor& gradient = parameter(t).grad(); gradient.defined()) of(t) = {gradient.detach()};
    }
  }
  const std::int64_t next = iteration_ + 1;
  for (const CalendarApply& apply : (*program_)[next].applies) {
    if (apply.at.kind != PointKind::kForwardStart || apply.source != Source::kReducedGradient) continue;
    for (const Piece& piece : apply.pieces) {
      if (piece.source.delta == 0) start_early(piece.source.op);
      OpRun& run = run_at(next + piece.source.delta, piece.source.op);
      wait_for(run, -1);
      const Block& block = program_->blocks[static_cast<std::size_t>(piece.block)];
      of(program_->block_tensor[static_cast<std::size_t>(piece.block)])
          .push_back(run.flat.narrow(0, piece.offset, block.end - block.begin));
    }
  }
  return parts;
}

}  // namespace gradweave::runtime
