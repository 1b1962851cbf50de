#include "runtime/passes.h"

#include <cstdint>

#include "model/hash.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gradweave::runtime {
namespace {

bool fused(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.scalar_type() == c10::kFloat;
}

#if defined(__SSE2__)
constexpr std::int64_t kLine = 16;  // floats in a cache line

// Whole lines from element `begin` on, of both copies. Returns the first element that was not copied.
std::int64_t stream_lines(const float* from, float* first, float* second, std::int64_t begin,
                          std::int64_t end) {
  for (; begin + kLine <= end; begin += kLine) {
    for (std::int64_t i = begin; i < begin + kLine; i += 4) {
      const __m128 four = _mm_loadu_ps(from + i);
      _mm_stream_ps(first + i, four);
      _mm_stream_ps(second + i, four);
    }
  }
  _mm_sfence();  // another thread reads the copies
  return begin;
}

std::int64_t misaligned(const float* at) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(at) % (kLine * sizeof(float)));
}
#endif

void copy_plainly(const float* __restrict from, float* __restrict first, float* __restrict second,
                  std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) first[i] = second[i] = from[i];
}

void copy_floats(const float* from, float* first, float* second, std::int64_t count) {
  std::int64_t done = 0;
#if defined(__SSE2__)
  if (misaligned(first) == misaligned(second) && misaligned(first) % sizeof(float) == 0) {
    const std::int64_t head = (kLine - misaligned(first) / static_cast<std::int64_t>(sizeof(float))) % kLine;
    if (head < count) {
      copy_plainly(from, first, second, 0, head);
      done = stream_lines(from, first, second, head, count);
    }
  }
#endif
  copy_plainly(from, first, second, done, count);
}

}  // namespace

at::Tensor flattened(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

void copy_twice(const at::Tensor& source, const at::Tensor& first, const at::Tensor& second) {
  if (fused(source)) {
    copy_floats(source.const_data_ptr<float>(), first.mutable_data_ptr<float>(),
                second.mutable_data_ptr<float>(), source.numel());
    return;
  }
  first.copy_(source);
  second.copy_(source);
}

std::int64_t checksum_of(const at::Tensor& tensor) {
  const at::Tensor own = tensor.detach();
  const at::Tensor flat = flattened(own.is_non_overlapping_and_dense() ? own : own.contiguous()).cpu();
  return static_cast<std::int64_t>(
      checksum({static_cast<const char*>(flat.const_data_ptr()), static_cast<std::size_t>(flat.nbytes())}));
}

void add_correction(const at::Tensor& value, const at::Tensor& sum, const at::Tensor& own, int world_size) {
  if (!fused(value)) {
    value.add_(sum.sub_(own.mul(world_size)).mul_(1.0 / world_size));
    return;
  }
  float* const __restrict to = value.mutable_data_ptr<float>();
  const float* const __restrict total = sum.const_data_ptr<float>();
  const float* const __restrict mine = own.const_data_ptr<float>();
  const auto ranks = static_cast<float>(world_size);
  const auto share = static_cast<float>(1.0 / world_size);
  const std::int64_t count = value.numel();
  for (std::int64_t i = 0; i < count; ++i) to[i] += (total[i] - ranks * mine[i]) * share;
}

}  // namespace gradweave::runtime
