// Inner products of gradients, for estimates of what training supports.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

#include "gradweave/estimate.h"

namespace gradweave::runtime {

// Returns the sums of one iteration on this rank, of tensors by parameter: `own` gradients and those of the iteration
// `own_before`, flat and undefined where there is none; their means over ranks, likewise, in the parameters' shapes; the
// optimizer's last `step`, and what it multiplied the learning rate with for it, empty or undefined where that is not known,
// of which the gradient before is `share`. O(elements).
GradientSums gradient_sums(const std::vector<at::Tensor>& own, const std::vector<at::Tensor>& own_before,
                           const std::vector<at::Tensor>& mean, const std::vector<at::Tensor>& mean_before,
                           const std::vector<at::Tensor>& step, const std::vector<at::Tensor>& moment,
                           double share);

}  // namespace gradweave::runtime
