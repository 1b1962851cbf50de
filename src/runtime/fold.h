// A job goes on with another number of ranks: each new rank plays every rank of the job before.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

namespace gradweave::runtime {

// Returns the mean of what ranks have of one tensor, in their order; where all have the same values, a copy of those.
// The caller owes floats of one shape, and at least one.
at::Tensor mean_over_ranks(const std::vector<at::Tensor>& of_ranks);

}  // namespace gradweave::runtime
