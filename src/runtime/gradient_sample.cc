#include "runtime/gradient_sample.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "runtime/passes.h"

namespace gradweave::runtime {
namespace {

std::int64_t rounded_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? flattened(tensor) : tensor.reshape({-1});
}

}  // namespace

GradientSample::GradientSample(const std::vector<std::int64_t>& elements, std::int64_t most)
    : stride_(std::max<std::int64_t>(1, std::reduce(elements.begin(), elements.end()) / most)) {
  for (const std::int64_t count : elements) {
    offsets_.push_back(size_);
    size_ += rounded_up(count, stride_);
  }
}

void GradientSample::take(std::size_t parameter, std::int64_t begin, const at::Tensor& gradient) {
  if (gradient.layout() != c10::kStrided || gradient.is_complex()) return;
  const std::int64_t place = rounded_up(begin, stride_);
  const at::Tensor picked =
      in_memory_order(gradient.detach()).slice(0, place * stride_ - begin, gradient.numel(), stride_);
  if (!taken_.defined()) taken_ = at::zeros({size_}, picked.options().dtype(c10::kFloat));
  taken_.narrow(0, offsets_[parameter] + place, picked.numel()).copy_(picked);
}

void GradientSample::copy() {
  if (!taken_.defined()) return;
  if (!copied_.defined()) copied_ = floats_beside(taken_.device(), size_);
  copied_.copy_(taken_, true);
  fence_.record(taken_.device());
  taken_.zero_();
}

const at::Tensor& GradientSample::values() {
  if (copied_.defined()) fence_.synchronize();
  return copied_;
}

}  // namespace gradweave::runtime
