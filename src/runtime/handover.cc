#include "runtime/handover.h"

#include <ATen/ops/isfinite.h>

#include "runtime/fence.h"

namespace gradweave::runtime {

bool Handover::begin_backward() {
  not_finite_ = -1;
  places_.clear();
  unscaled_.clear();
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
  gradient_ = parameters_.flat_gradient(tensor);
  if (kind == run::Gradient::kComputed) separate();
  if (loss_scale_.is_on() && kind != run::Gradient::kHeld) unscale(kind);
  if (local_.kept) {
    local_.copies.resize(parameters_.all().size());
    local_.copies[static_cast<std::size_t>(parameters_.number_of(tensor))] = gradient_.clone();
  }
  if (check_ && !loss_scale_.known() && not_finite_ < 0 && !at::isfinite(gradient_).all().item<bool>())
    not_finite_ = tensor;
  if (kind == run::Gradient::kComputed) versions_.hand_over(tensor);
}

// Autograd gives parameters that are added to each other one gradient: what is put in place of one would be the other's too.
void Handover::separate() {
  const NamedParameter& named = parameters_.named(tensor_);
  if (named.place) return;  // which is no memory of autograd's
  const at::Tensor own = named.gradient();
  const bool shared =
      own.numel() > 0 && own.is_alias_of(gradient_) && own.storage().use_count() > 2;  // those two
  if (!shared || places_.insert(own.const_data_ptr()).second) return;
  named.set_gradient(own.clone());
  gradient_ = parameters_.flat_gradient(tensor_);
}

// Autograd gives a parameter the memory of a gradient that flows on, or gives two the same: in place each of them would take
// the scale out once more.
void Handover::unscale(run::Gradient kind) {
  const bool callers = gradient_.is_alias_of(parameters_.gradient(tensor_));
  if (callers && gradient_.storage().use_count() == 2) return loss_scale_.unscale(gradient_);
  if (callers) gradient_ = gradient_.clone();
  loss_scale_.unscale(gradient_);
  unscaled_.push_back({tensor_, kind, gradient_});
}

void Handover::end_backward() {
  for (const Unscaled& each : std::exchange(unscaled_, {})) {
    const at::Tensor& parameter = parameters_[each.tensor];
    const at::Tensor gradient = parameters_.gradient(each.tensor).detach();
    gradient.copy_(each.flat.as_strided(parameter.sizes(), parameter.strides()));
    keep_for_stream(gradient);  // of autograd's, on the layer's own
    keep_for_stream(each.flat);
    if (each.kind == run::Gradient::kComputed) versions_.hand_over(each.tensor);
  }
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
