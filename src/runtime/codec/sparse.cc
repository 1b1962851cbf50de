#include "runtime/codec/sparse.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "runtime/codec/loops.h"

namespace gradweave::runtime {
namespace {

constexpr std::int64_t kSample = 16'384;

// The `count` largest of a sample's elements would be at least this.
double sampled_threshold(const at::Tensor& values, std::int64_t count) {
  const std::int64_t step = (values.numel() / kSample) | 1;  // odd: rows have even lengths
  const at::Tensor sample = values.slice(0, step / 2, values.numel(), step).abs();
  const double expected =
      static_cast<double>(count) / static_cast<double>(values.numel()) * static_cast<double>(sample.numel());
  const auto rank = static_cast<std::int64_t>(expected + 3 * std::sqrt(expected) + 1);
  if (rank >= sample.numel()) return 0;
  return std::get<0>(sample.kthvalue(sample.numel() - rank)).item<double>();
}

}  // namespace

at::Tensor at_least(const at::Tensor& values, double threshold) {
  if (!looped(values)) return values.abs().lt(threshold).logical_not_().nonzero().squeeze(1);
  std::vector<std::int64_t> places =
      places_at_least(values.const_data_ptr<float>(), values.numel(), static_cast<float>(threshold));
  const at::Tensor view = at::from_blob(places.data(), {static_cast<std::int64_t>(places.size())}, at::kLong);
  return view.clone();
}

at::Tensor largest(const at::Tensor& values, std::int64_t count) {
  if (looped(values) && values.numel() > 4 * kSample && count < values.numel() / 4) {
    const at::Tensor candidates = at_least(values, sampled_threshold(values, count));
    if (candidates.numel() >= count) {
      const at::Tensor among = values.index_select(0, candidates).abs();
      return candidates.index_select(0, std::get<1>(among.topk(count, 0, true, false)));
    }
  }
  return std::get<1>(values.abs().topk(count, 0, true, false));
}

at::Tensor taken_out(const at::Tensor& values, const at::Tensor& places) {
  at::Tensor out = values.index_select(0, places);
  values.index_fill_(0, places, 0);
  return out;
}

std::int64_t Elements::bytes() const {
  return count_ * (static_cast<std::int64_t>(c10::elementSize(dtype_)) + 4);
}

// The wider ones first, so that both are aligned.
void Elements::write(const at::Tensor& values, const at::Tensor& places, const at::Tensor& to) const {
  const std::int64_t of_values = bytes() - 4 * count_;
  const bool values_first = values.element_size() >= 4;
  const std::int64_t at_values = values_first ? 0 : 4 * count_, at_places = values_first ? of_values : 0;
  to.narrow(0, at_values, of_values).copy_(values.contiguous().view(c10::kByte));
  to.narrow(0, at_places, 4 * count_).copy_(places.to(c10::kInt).view(c10::kByte));
}

Elements::Read Elements::read(const at::Tensor& from) const {
  const std::int64_t of_values = bytes() - 4 * count_;
  const bool values_first = c10::elementSize(dtype_) >= 4;
  const at::Tensor aligned = from.clone();
  return {aligned.narrow(0, values_first ? 0 : 4 * count_, of_values).view(dtype_),
          aligned.narrow(0, values_first ? of_values : 0, 4 * count_).view(c10::kInt)};
}

std::unique_ptr<Pending> start_sum(const Call& call, const at::Tensor& values, const at::Tensor& places) {
  const Elements elements(values.numel(), values.scalar_type());
  Call gather = call;
  gather.collective = Collective::kAllGather;
  gather.flat = at::empty({elements.bytes() * call.world()}, call.flat.options().dtype(c10::kByte));
  elements.write(values, places, gather.part(call.rank()));
  return then(call, runtime::start(gather), [=] {
    // Sums of 16-bit floats are rounded once.
    const bool narrow = call.flat.element_size() == 2;
    const at::Tensor sum =
        narrow ? at::zeros({call.flat.numel()}, call.flat.options().dtype(c10::kFloat)) : call.flat.zero_();
    for (int r = 0; r < call.world(); ++r) {
      const Elements::Read read = elements.read(gather.part(r));
      sum.index_add_(0, read.places, read.values.to(sum.scalar_type()));
    }
    if (narrow) call.flat.copy_(sum);
  });
}

}  // namespace gradweave::runtime
