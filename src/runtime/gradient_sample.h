// Some elements of a model's gradients, the same ones each time.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/fence.h"

namespace gradweave::runtime {

// On the training thread.
class GradientSample {
 public:
  // `elements`: how many each parameter has. Of all of them the sample has about `most`, and one of each parameter at least.
  GradientSample(const std::vector<std::int64_t>& elements, std::int64_t most);

  std::int64_t size() const { return size_; }
  // `gradient`: of the elements from `begin` on of `parameter`, in memory order. Sparse and complex ones are left out. O(sample).
  void take(std::size_t parameter, std::int64_t begin, const at::Tensor& gradient);
  // What was taken is the sample from now on, which an accelerator copies while the host goes on; what is not taken before the next
  // call is zero.
  void copy();
  // The sample, size() of float32 in the host's memory. Waits for an accelerator. Undefined if nothing has ever been taken.
  const at::Tensor& values();

 private:
  std::int64_t stride_;                // between its elements of a parameter
  std::vector<std::int64_t> offsets_;  // of each parameter in it
  std::int64_t size_ = 0;
  at::Tensor taken_;   // where the gradients are
  at::Tensor copied_;  // in the host's memory
  Fence fence_;
};

}  // namespace gradweave::runtime
