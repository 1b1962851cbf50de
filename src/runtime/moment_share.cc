#include "runtime/moment_share.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace gradweave::runtime {
namespace {

constexpr std::int64_t kSample = 4096;   // elements, about
constexpr double kKept = 0.99202794407;  // 0.999^8: of a sample, when the next is taken in
constexpr const char* kWhat = "the exchange of samples of gradients";

std::int64_t rounded_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

at::Tensor in_memory_order(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) return tensor.reshape({-1});
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
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

void MomentShare::iteration_ended() {
  if (samples()) {
    if (const std::optional<Sums> sums = arrived()) take_in(*sums);
    ControlGroup::Numbers numbers(static_cast<std::size_t>(length_) + 1);
    if (sample_.defined()) {
      const at::Tensor here = sample_.to(c10::kCPU, c10::kDouble);
      std::copy_n(here.const_data_ptr<double>(), length_, numbers.begin());
      numbers.back() = std::inner_product(numbers.begin(), numbers.end() - 1, numbers.begin(), 0.0);
      sample_.zero_();
    }
    under_way_ = control_->begin_means(numbers, kWhat);
  }
  ++iterations_;
}

MomentShare::Sums MomentShare::summed(const ControlGroup::Numbers& means) const {
  return {.of_mean = std::inner_product(means.begin(), means.end() - 1, means.begin(), 0.0),
          .of_each = means.back()};
}

std::optional<MomentShare::Sums> MomentShare::arrived() {
  if (under_way_) next_ = summed(std::exchange(under_way_, nullptr)());
  return std::exchange(next_, std::nullopt);
}

void MomentShare::take_in(const Sums& sums) {
  if (!std::isfinite(sums.of_each)) return;  // no rank steps by such a gradient
  sums_ = {.of_mean = kKept * sums_.of_mean + sums.of_mean, .of_each = kKept * sums_.of_each + sums.of_each};
  if (sums_.of_each > 0) share_ = std::clamp(sums_.of_mean / sums_.of_each, 1.0 / ranks_, 1.0);
}

std::vector<double> MomentShare::state() {
  next_ = arrived();
  std::vector<double> state{static_cast<double>(iterations_), share_, sums_.of_mean, sums_.of_each};
  if (next_) state.insert(state.end(), {next_->of_mean, next_->of_each});
  return state;
}

void MomentShare::restore(const std::vector<double>& state) {
  iterations_ = static_cast<std::int64_t>(state.at(0));
  share_ = state.at(1);
  sums_ = {.of_mean = state.at(2), .of_each = state.at(3)};
  next_.reset();
  if (state.size() > 4) next_ = Sums{.of_mean = state.at(4), .of_each = state.at(5)};
}

}  // namespace gradweave::runtime
