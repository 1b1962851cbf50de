#include "runtime/loss_scale.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "gradweave/error.h"

namespace gradweave::runtime {

bool LossScale::begin_backward() {
  inverse_scale_.reset();
  if (!unscaler_ || meaning_ == Meaning::kNone) return false;
  inverse_scale_ = unscaler_();
  if (!inverse_scale_.defined()) return false;
  if (meaning_ == Meaning::kRefused) {
    throw InvalidInput(
        "a loss scale: this plan steps parameters in the backward, before all gradients are "
        "known to be finite",
        "GradScaler", "use bfloat16, which needs no scale, or a scheme that steps in optimizer.step()");
  }
  found_inf_ = at::zeros({}, inverse_scale_.options());
  return true;
}

void LossScale::unscale(const at::Tensor& gradient) const {
  const std::vector<at::Tensor> alias{gradient.detach()};
  at::Tensor found = found_inf_;
  at::_amp_foreach_non_finite_check_and_unscale_(alias, found, inverse_scale_);
}

}  // namespace gradweave::runtime
