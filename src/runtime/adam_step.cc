#include "runtime/adam_step.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace gradweave::runtime {
namespace {

using Tensors = std::vector<at::Tensor>;

// What is the same for all elements.
struct Factors {
  double first, second;  // 1 / bias
  double unbiased;       // 1 / (1 - c)
  double share;          // c
  double part;           // 1 / workers
  double lr, eps, keep;
};

Factors factors_of(const AdamStep& step, double count) {
  const double share = (1 - step.beta1) / (1 + step.beta1);
  return {.first = 1 / (1 - std::pow(step.beta1, count)),
          .second = 1 / (1 - std::pow(step.beta2, count)),
          .unbiased = 1 / (1 - share),
          .share = share,
          .part = 1.0 / step.workers,
          .lr = step.lr,
          .eps = step.eps,
          .keep = 1 - step.lr * step.decay};
}

bool fused(const at::Tensor& value, const at::Tensor& first, const at::Tensor& second) {
  for (const at::Tensor* each : {&value, &first, &second}) {
    if (!each->device().is_cpu() || each->scalar_type() != c10::kFloat || each->strides() != value.strides())
      return false;
  }
  return value.is_non_overlapping_and_dense();
}

void step_floats(float* __restrict value, const float* __restrict first, const float* __restrict second,
                 std::int64_t count, const Factors& factors) {
  const auto to_mean = static_cast<float>(factors.first), to_square = static_cast<float>(factors.second);
  const auto unbiased = static_cast<float>(factors.unbiased), share = static_cast<float>(factors.share);
  const auto part = static_cast<float>(factors.part), lr = static_cast<float>(factors.lr);
  const auto eps = static_cast<float>(factors.eps), keep = static_cast<float>(factors.keep);
  for (std::int64_t i = 0; i < count; ++i) {
    const float mean = first[i] * to_mean;
    const float square = mean * mean;
    const float noise = second[i] * to_square - square;
    const float variance = (noise < 0 ? 0 : noise) * unbiased;
    const float rest = square - variance * share;
    const float moment = (rest < 0 ? 0 : rest) + variance * part;
    value[i] = value[i] * keep - mean * lr / (std::sqrt(moment) + eps);
  }
}

double number(const at::Tensor& tensor) { return tensor.item().toDouble(); }

// Counts on an accelerator come over together.
std::vector<double> numbers(const Tensors& tensors) {
  const bool elsewhere =
      std::ranges::any_of(tensors, [](const at::Tensor& tensor) { return !tensor.device().is_cpu(); });
  std::vector<double> found;
  if (elsewhere) {
    const at::Tensor together = at::stack(tensors).to(at::kCPU);
    for (std::int64_t i = 0; i < together.size(0); ++i) found.push_back(number(together[i]));
  } else {
    for (const at::Tensor& each : tensors) found.push_back(number(each));
  }
  return found;
}

at::Tensor widened(const at::Tensor& tensor) {
  const bool narrow = tensor.scalar_type() == c10::kHalf || tensor.scalar_type() == c10::kBFloat16;
  return narrow ? tensor.to(c10::kFloat) : tensor;
}

void step_lists(const Tensors& values, const Tensors& first, const Tensors& second,
                const std::vector<c10::Scalar>& to_mean, const std::vector<c10::Scalar>& to_square,
                const Factors& factors) {
  Tensors means = at::_foreach_mul(first, to_mean);
  Tensors moments = at::_foreach_mul(means, means);
  Tensors variances = at::_foreach_mul(second, to_square);
  at::_foreach_sub_(variances, moments);
  at::_foreach_clamp_min_(variances, 0);
  at::_foreach_mul_(variances, factors.unbiased);
  at::_foreach_sub_(moments, at::_foreach_mul(variances, factors.share));
  at::_foreach_clamp_min_(moments, 0);
  at::_foreach_mul_(variances, factors.part);
  at::_foreach_add_(moments, variances);
  at::_foreach_sqrt_(moments);
  at::_foreach_add_(moments, factors.eps);
  at::_foreach_mul_(means, factors.lr);
  at::_foreach_div_(means, moments);
  at::_foreach_mul_(values, factors.keep);
  at::_foreach_sub_(values, means);
}

}  // namespace

void step_as_whole_batch(const Tensors& values, const Tensors& first, const Tensors& second,
                         const Tensors& steps, const AdamStep& step) {
  const std::vector<double> counts = numbers(steps);
  Tensors targets, wide, means, squares;
  std::vector<c10::Scalar> to_mean, to_square;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Factors factors = factors_of(step, counts[i]);
    if (fused(values[i], first[i], second[i])) {
      step_floats(values[i].mutable_data_ptr<float>(), first[i].const_data_ptr<float>(),
                  second[i].const_data_ptr<float>(), values[i].numel(), factors);
      continue;
    }
    targets.push_back(values[i].detach());
    wide.push_back(widened(targets.back()));
    means.push_back(widened(first[i]));
    squares.push_back(widened(second[i]));
    to_mean.emplace_back(factors.first);
    to_square.emplace_back(factors.second);
  }
  if (targets.empty()) return;
  step_lists(wide, means, squares, to_mean, to_square, factors_of(step, 1));
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!wide[i].is_same(targets[i])) targets[i].copy_(wide[i]);
  }
}

}  // namespace gradweave::runtime
