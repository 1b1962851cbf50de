#include "runtime/moment_share.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/passes.h"

namespace gradweave::runtime {
namespace {

constexpr std::int64_t kSample = 4096;  // elements, about
constexpr double kKept = 0.999;         // of earlier samples, by iteration: Adam's own default
constexpr const char* kWhat = "the exchange of samples of gradients";

std::int64_t rounded_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? flattened(tensor) : tensor.reshape({-1});
}

}  // namespace

MomentShare::MomentShare(std::shared_ptr<ControlGroup> control, int ranks,
                         const std::vector<std::int64_t>& elements)
    : control_(std::move(control)),
      ranks_(ranks),
      stride_(std::max<std::int64_t>(1, std::reduce(elements.begin(), elements.end()) / kSample)) {
  for (const std::int64_t count : elements) {
    offsets_.push_back(length_);
    length_ += rounded_up(count, stride_);
  }
}

void MomentShare::take(std::size_t parameter, std::int64_t begin, const at::Tensor& gradient) {
  if (gradient.layout() != c10::kStrided || gradient.is_complex()) return;
  const std::int64_t place = rounded_up(begin, stride_);
  const at::Tensor picked =
      in_memory_order(gradient.detach()).slice(0, place * stride_ - begin, gradient.numel(), stride_);
  if (!sample_.defined()) sample_ = at::zeros({length_}, picked.options().dtype(c10::kFloat));
  sample_.narrow(0, offsets_[parameter] + place, picked.numel()).copy_(picked);
}

double MomentShare::share() const {
  return sums_.of_each > 0 ? std::clamp(sums_.of_mean / sums_.of_each, 1.0 / ranks_, 1.0) : 1;
}

void MomentShare::iteration_ended() {
  if (samples()) {
    wait();
    // One element that is not finite would make every later step so.
    if (std::isfinite(next_.of_each)) {
      const double kept = std::pow(kKept, kEvery);
      sums_ = {.of_mean = kept * sums_.of_mean + next_.of_mean,
               .of_each = kept * sums_.of_each + next_.of_each};
    }
    taken_ = true;
    if (sample_.defined()) {
      if (!copy_.defined()) copy_ = floats_beside(sample_.device(), length_);
      copy_.copy_(sample_, true);
      copied_.record(sample_.device());
      sample_.zero_();
    }
  }
  if (iterations_ % kEvery == kCopied) begin();
  ++iterations_;
}

void MomentShare::begin() {
  if (!std::exchange(taken_, false)) return;
  ControlGroup::Numbers numbers(static_cast<std::size_t>(length_) + 1);
  if (copy_.defined()) {
    copied_.synchronize();
    std::copy_n(copy_.const_data_ptr<float>(), length_, numbers.begin());
    numbers.back() = std::inner_product(numbers.begin(), numbers.end() - 1, numbers.begin(), 0.0);
  }
  under_way_ = control_->begin_means(numbers, kWhat);
}

void MomentShare::wait() {
  begin();
  if (!under_way_) return;
  const ControlGroup::Numbers means = std::exchange(under_way_, nullptr)();
  next_ = {.of_mean = std::inner_product(means.begin(), means.end() - 1, means.begin(), 0.0),
           .of_each = means.back()};
}

std::vector<double> MomentShare::state() {
  wait();
  return {static_cast<double>(iterations_), sums_.of_mean, sums_.of_each, next_.of_mean, next_.of_each};
}

void MomentShare::restore(const std::vector<double>& state) {
  iterations_ = static_cast<std::int64_t>(state.at(0));
  sums_ = {.of_mean = state.at(1), .of_each = state.at(2)};
  next_ = {.of_mean = state.at(3), .of_each = state.at(4)};
}

}  // namespace gradweave::runtime
