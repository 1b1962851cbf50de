// Gradients and parameters into messages: error feedback, loss scales, buffers.
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "gradweave/error.h"
#include "runtime/host.h"
#include "runtime/passes.h"

namespace gradweave::runtime {

bool TorchHost::begin_backward() {
  release_retired();
  residuals_before_ = residuals_;
  anchors_.drop();
  not_finite_ = -1;
  return begin_unscaling();
}

// ---- loss scales

bool TorchHost::begin_unscaling() {
  inverse_scale_.reset();
  if (!unscaler_ || scaling_ == Scaling::kNone) return false;
  inverse_scale_ = unscaler_();
  if (!inverse_scale_.defined()) return false;
  if (scaling_ == Scaling::kRefused) {
    throw InvalidInput(
        "a loss scale: this plan steps parameters in the backward, before all gradients are "
        "known to be finite",
        "GradScaler", "use bfloat16, which needs no scale, or a scheme that steps in optimizer.step()");
  }
  found_inf_ = at::zeros({}, inverse_scale_.options());
  return true;
}

// In place, so that what is handed over and what the user reads are the same.
void TorchHost::unscale(const at::Tensor& gradient) {
  if (!inverse_scale_.defined() || !gradient.defined() || gradient.layout() != c10::kStrided) return;
  const std::vector<at::Tensor> alias{gradient.detach()};
  at::_amp_foreach_non_finite_check_and_unscale_(alias, found_inf_, inverse_scale_);
}

bool TorchHost::overflowed() { return found_inf_.item<float>() != 0; }

// ---- a gradient

void TorchHost::take_gradient(std::int32_t tensor, run::Gradient kind) {
  tensor_ = tensor;
  part_block_ = -1;
  const at::Tensor& gradient = this->gradient(tensor);
  if (kind == run::Gradient::kNone) {
    gradient_.reset();
    return;
  }
  unscale(gradient);
  gradient_ = flat_gradient(tensor);
  if (keeps_local_) {
    local_.resize(parameters_.size());
    local_[static_cast<std::size_t>(parameter_of(tensor))] = gradient_.clone();
  }
  // With a scaler, what is not finite is its affair.
  if (options_.check && !unscaler_ && not_finite_ < 0 && !at::isfinite(gradient_).all().item<bool>())
    not_finite_ = tensor;
  if (kind == run::Gradient::kComputed)
    handed_[static_cast<std::size_t>(tensor)] = {gradient.const_data_ptr(), gradient._version()};
}

void TorchHost::compensate(std::int32_t block, double coefficient, bool sent) {
  const Block& place = calendar_->blocks[static_cast<std::size_t>(block)];
  const at::Tensor part =
      gradient_.defined() ? gradient_.narrow(0, place.begin, place.end - place.begin) : at::Tensor();
  at::Tensor& residual = residuals_[static_cast<std::size_t>(block)];
  part_block_ = block;
  part_ = part;
  if (residual.defined()) {
    part_ = part.defined() ? part.add(residual, coefficient) : residual.mul(coefficient);
  }
  if (sent) {
    residual.reset();
  } else if (part_.defined()) {
    residual = part_.is_same(part) ? part.clone() : part_;
  }
}

// Not if the gradient's storage is shared: then others would see it change.
bool TorchHost::lend_gradient(const run::Execution& execution) {
  if (!gradient_.defined() || part_block_ == execution.op->blocks.front()) return false;
  const at::Tensor& own = gradient(tensor_);
  if (own.data_ptr() != gradient_.data_ptr() || own.storage().use_count() > 2) return false;
  Message& message = this->message(execution);
  message.flat = gradient_;
  message.lent = true;
  if (world_size_ > 1) message.flat.mul_(scale_);
  message.data.record(options_.device);
  return true;
}

void TorchHost::write_gradient(const run::Execution& execution, std::size_t at, bool first,
                               std::int32_t iterations) {
  acquire(execution);
  const Block& place = block_at(execution, at);
  const std::int64_t length = place.end - place.begin, offset = execution.op->offsets[at];
  at::Tensor part = part_block_ == execution.op->blocks[at] ? part_ : gradient_;
  if (part.defined() && part_block_ != execution.op->blocks[at]) part = part.narrow(0, place.begin, length);
  Message& message = this->message(execution);
  at::Tensor to = message.flat.narrow(0, offset, length);
  const double share = 1.0 / (world_size_ * static_cast<double>(iterations));
  if (!part.defined()) {
    if (first) to.zero_();
  } else if (first && iterations == 1) {
    world_size_ > 1 ? void(at::mul_out(to, part, scale_)) : void(to.copy_(part));
  } else if (first) {
    at::mul_out(to, part, at::scalar_tensor(share, at::kDouble));
  } else {
    to.add_(part, share);
  }
  if (execution.op->keep_own) {
    at::Tensor own = message.own.narrow(0, offset, length);
    if (!part.defined()) {
      if (first) own.zero_();
    } else {
      first ? own.copy_(part) : own.add_(part);
    }
  }
  message.data.record(options_.device);  // of this layer's stream
}

// ---- messages

void TorchHost::acquire(const run::Execution& execution) {
  Message& message = this->message(execution);
  if (message.flat.defined()) return;
  message.flat = pool_->acquire(*execution.op);
  message.lent = false;
  if (execution.op->keep_own) message.own = pool_->acquire(*execution.op);
}

void TorchHost::read_parameter(const run::Execution& execution, std::size_t at) {
  if (!in_groups(*execution.op)) acquire(execution);
  const Block& place = block_at(execution, at);
  const std::int64_t length = place.end - place.begin, offset = execution.op->offsets[at];
  const std::int32_t tensor = calendar_->block_tensor[static_cast<std::size_t>(execution.op->blocks[at])];
  const at::Tensor value = flat_parameter(tensor).narrow(0, place.begin, length);
  Message& message = this->message(execution);
  if (execution.op->anchored) {
    anchors_.read(execution, at, message);
  } else if (execution.op->keep_own) {
    copy_twice(value, message.flat.narrow(0, offset, length), message.own.narrow(0, offset, length));
  } else {
    message.flat.narrow(0, offset, length).copy_(value);
  }
  note_parameter(tensor);
}

void TorchHost::filled(const run::Execution& execution) { message(execution).data.record(options_.device); }

void TorchHost::landed(const run::Execution& execution) { message(execution).result.wait(options_.device); }

void TorchHost::rescale(const run::Execution& execution, double factor) {
  message(execution).flat.mul_(factor);
}

// Gradients may still be views of the buffers: see release_retired().
void TorchHost::retire(const run::Execution& execution) {
  Message& message = this->message(execution);
  anchors_.retire(*execution.op, message);
  if (message.flat.defined() && !message.lent) retired_.push_back({execution.op, std::move(message.flat)});
  if (message.own.defined()) retired_.push_back({execution.op, std::move(message.own)});
  message.flat.reset();
  message.own.reset();
}

// Whether the caller has kept a gradient that is a view of the buffer.
bool TorchHost::looked_at(const Retired& retired) const {
  std::size_t own = 1;  // `retired` itself
  std::int32_t last = -1;
  for (std::int32_t b : retired.op->blocks) {
    const std::int32_t tensor = calendar_->block_tensor[static_cast<std::size_t>(b)];
    if (std::exchange(last, tensor) == tensor) continue;
    const at::Tensor& gradient = this->gradient(tensor);
    if (gradient.defined() && gradient.is_alias_of(retired.flat)) ++own;
  }
  return static_cast<std::size_t>(retired.flat.storage().use_count()) > own;
}

// At the start of a backward, after the user's zero_grad(): makes retired buffers free. A gradient that is
// still a view of one is copied away, unless the buffer is certain to get the same gradient again. One that
// the caller has kept is his, with the buffer.
void TorchHost::release_retired() {
  for (Retired& retired : retired_) {
    if (looked_at(retired)) {
      pool_->forget(*retired.op);
      continue;
    }
    if (retired.op->payload == Payload::kGradient && !pool_->single(*retired.op)) {
      for (std::int32_t b : retired.op->blocks) {
        at::Tensor& gradient = this->gradient(calendar_->block_tensor[static_cast<std::size_t>(b)]);
        if (gradient.defined() && gradient.is_alias_of(retired.flat)) gradient = gradient.clone();
      }
    }
    pool_->release(*retired.op, std::move(retired.flat));
  }
  retired_.clear();
}

}  // namespace gradweave::runtime
