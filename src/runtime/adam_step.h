// Adam's second moment where each worker steps by the gradient of its own part of a batch.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

namespace gradweave::runtime {

struct AdamStep {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0;
  double decay = 0;  // decoupled weight decay
  int workers = 1;   // whose parts make up the batch
};

// Steps `values` as Adam does by moments of the gradients of one worker's part of the batch (`first`, `second`,
// not yet corrected for their bias, both read only), but divides by the second moment that the gradient of the
// whole batch would have. For each element, with bias-corrected m and v and c = (1 - beta1) / (1 + beta1), the
// share of a gradient's variance that its average m still has:
//
//   var    = max(v - m^2, 0) / (1 - c)      noise of one worker's gradient
//   mean2  = max(m^2 - c * var, 0)          square of the mean gradient
//   value <- value * (1 - lr * decay) - lr * m / (sqrt(mean2 + var / workers) + eps)
//
// `steps`: how often each has been stepped, this step included; one element each, anywhere. Lists are equally
// long, tensors of one place equally shaped. float32 on the CPU: one pass over memory; otherwise tensor
// operations, 16-bit floats in float32 and rounded once. The same bits either way, but where torch's square
// root is not the nearest float. O(elements).
void step_as_whole_batch(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& first,
                         const std::vector<at::Tensor>& second, const std::vector<at::Tensor>& steps,
                         const AdamStep& step);

}  // namespace gradweave::runtime
