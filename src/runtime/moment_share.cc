#include "runtime/moment_share.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gradweave::runtime {
namespace {

constexpr std::int64_t kSample = 4096;  // elements, about
constexpr const char* kWhat = "the exchange of samples of gradients";

}  // namespace

MomentShare::MomentShare(std::shared_ptr<ControlGroup> control, int ranks,
                         const std::vector<std::int64_t>& elements)
    : control_(std::move(control)), ranks_(ranks), sample_(elements, kSample) {}

void MomentShare::iteration_ended() {
  if (samples()) {
    wait();
    noise_.add(next_, kEvery);
    taken_ = true;
    sample_.copy();
  }
  if (iterations_ % kEvery == kCopied) begin();
  ++iterations_;
}

void MomentShare::begin() {
  if (!std::exchange(taken_, false)) return;
  ControlGroup::Numbers numbers(static_cast<std::size_t>(sample_.size()) + 1);
  if (const at::Tensor& values = sample_.values(); values.defined()) {
    std::copy_n(values.const_data_ptr<float>(), values.numel(), numbers.begin());
    numbers.back() = std::inner_product(numbers.begin(), numbers.end() - 1, numbers.begin(), 0.0);
  }
  under_way_ = control_->begin_means(numbers, kWhat);
}

void MomentShare::wait() {
  begin();
  if (!under_way_) return;
  const ControlGroup::Numbers means = std::exchange(under_way_, nullptr)();
  const double of_mean = std::inner_product(means.begin(), means.end() - 1, means.begin(), 0.0);
  next_ = GradientNoise::of(of_mean, means.back(), ranks_);
}

std::vector<double> MomentShare::state() {
  wait();
  return {static_cast<double>(iterations_), noise_.signal, noise_.noise, next_.signal, next_.noise};
}

void MomentShare::restore(const std::vector<double>& state) {
  iterations_ = static_cast<std::int64_t>(state.at(0));
  noise_ = {.signal = state.at(1), .noise = state.at(2)};
  next_ = {.signal = state.at(3), .noise = state.at(4)};
}

}  // namespace gradweave::runtime
