#include "runtime/handover.h"

#include <ATen/ops/isfinite.h>

namespace gradweave::runtime {

bool Handover::begin_backward() {
  not_finite_ = -1;
  versions_.begin_backward();
  return loss_scale_.begin_backward();
}

void Handover::take(std::int32_t tensor, run::Gradient kind) {
  tensor_ = tensor;
  compensated_ = -1;
  if (kind == run::Gradient::kNone) {
    gradient_.reset();
    return;
  }
  if (kind != run::Gradient::kHeld) loss_scale_.unscale(parameters_.gradient(tensor));
  gradient_ = parameters_.flat_gradient(tensor);
  if (local_.kept) {
    local_.copies.resize(parameters_.all().size());
    local_.copies[static_cast<std::size_t>(parameters_.number_of(tensor))] = gradient_.clone();
  }
  if (check_ && !loss_scale_.known() && not_finite_ < 0 && !at::isfinite(gradient_).all().item<bool>())
    not_finite_ = tensor;
  if (kind == run::Gradient::kComputed) versions_.hand_over(tensor);
}

void Handover::compensate(std::int32_t block, ErrorFeedback& feedback, double coefficient, bool sent) {
  compensated_ = -1;
  sum_ = feedback.compensate(block, part(block), coefficient, sent);
  compensated_ = block;
}

at::Tensor Handover::part(std::int32_t block) const { return block == compensated_ ? sum_ : own_part(block); }

at::Tensor Handover::own_part(std::int32_t block) const {
  return gradient_.defined() ? parameters_.part(gradient_, block) : at::Tensor();
}

// Not if the gradient's storage is shared: then others would see it change.
at::Tensor Handover::lendable(std::int32_t block) const {
  if (!gradient_.defined() || block == compensated_) return {};
  const at::Tensor own = parameters_.gradient(tensor_);
  if (own.data_ptr() != gradient_.data_ptr() || own.storage().use_count() > 2) return {};
  return gradient_;
}

void Handover::let_go() {
  gradient_.reset();
  sum_.reset();
}

}  // namespace gradweave::runtime
