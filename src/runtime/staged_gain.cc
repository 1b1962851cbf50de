#include "runtime/staged_gain.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>

namespace gradweave::runtime {
namespace {

// What a copy takes of the device's memory at most where it has another type: elements.
constexpr std::int64_t kSlice = 1 << 23;

template <typename Visit>
void for_slices(const at::Tensor& flat, const Visit& visit) {
  for (std::int64_t begin = 0; begin < flat.numel(); begin += kSlice)
    visit(flat.slice(0, begin, std::min(begin + kSlice, flat.numel())), begin);
}

float* floats_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

}  // namespace

StagedGain::StagedGain(std::int64_t count, c10::Device device) : values_(floats_beside(device, count)) {}

void StagedGain::begin(std::uint64_t key, codec::Outer outer, float share) {
  parts_.clear();
  arrived_ = {};
  key_ = key;
  outer_ = outer;
  share_ = share;
  stage_ = Stage::kRead;
}

void StagedGain::place(std::int64_t offset, const at::Tensor& anchor, const at::Tensor& momentum) {
  parts_.push_back({offset, anchor.numel(), anchor, momentum});
}

void StagedGain::read(const at::Tensor& value, std::int64_t offset, const at::Tensor& anchor,
                      const at::Tensor& momentum, std::optional<c10::Stream> stream) {
  place(offset, anchor, momentum);
  Fence written;
  written.record(value.device());
  const c10::OptionalStreamGuard copying(stream);
  written.wait(value.device());
  for_slices(value, [&](const at::Tensor& slice, std::int64_t begin) {
    values_.narrow(0, offset + begin, slice.numel()).copy_(slice, true);
  });
  keep_for_stream(value);
  arrived_.record(value.device());
}

void StagedGain::await() const {
  if (stage_ == Stage::kRead) arrived_.synchronize();
}

void StagedGain::send(const std::optional<GroupMessage>& groups, const at::Tensor& flat,
                      const at::Tensor& own) {
  if (stage_ != Stage::kRead) return;
  for (const Part& part : parts_) values_.narrow(0, part.begin, part.length).sub_(part.anchor);
  if (groups) {
    codec::kernels().encode(groups->layout.format, values_.const_data_ptr<float>(), nullptr, values_.numel(),
                            key_, 0, groups->sent.mutable_data_ptr<std::uint8_t>());
  } else {
    own.copy_(values_);
    flat.copy_(values_);
  }
  stage_ = Stage::kSent;
}

void StagedGain::land(const std::optional<GroupMessage>& groups, const at::Tensor& flat,
                      const at::Tensor& own) {
  if (stage_ == Stage::kLanded) return;
  values_.fill_(-0.0);  // which any number is added to without a change
  for (const Part& part : parts_) {
    float *const to = floats_of(values_) + part.begin, *const anchor = floats_of(part.anchor);
    float* const momentum = floats_of(part.momentum);
    if (groups) {
      codec::kernels().land(groups->layout.format,
                            {.sources = groups->sources,
                             .own = groups->own,
                             .count = groups->layout.count,
                             .begin = part.begin,
                             .end = part.begin + part.length,
                             .share = share_,
                             .outer = outer_},
                            to, anchor, momentum);
    } else {
      codec::kernels().land_floats(flat.const_data_ptr<float>() + part.begin,
                                   own.const_data_ptr<float>() + part.begin, part.length, share_, outer_, to,
                                   anchor, momentum);
    }
  }
  stage_ = Stage::kLanded;
}

void StagedGain::add_to(const at::Tensor& value, std::int64_t offset) const {
  for_slices(value, [&](const at::Tensor& slice, std::int64_t begin) {
    slice.add_(values_.narrow(0, offset + begin, slice.numel()).to(value.device(), c10::kFloat, true));
  });
}

}  // namespace gradweave::runtime
