// What codecs that send some of the elements share.
#pragma once

#include "runtime/codec/codec.h"

namespace gradweave::runtime {

// Returns the places (int64) of the `count` elements of largest magnitude, in no order. Exact; on the processor
// O(numel) with a small factor, since a sample tells which elements are candidates.
at::Tensor largest(const at::Tensor& values, std::int64_t count);

// Returns the places of elements whose magnitude is at least `threshold`, in ascending order.
at::Tensor at_least(const at::Tensor& values, double threshold);

// Returns the elements at `places`, which become 0.
at::Tensor taken_out(const at::Tensor& values, const at::Tensor& places);

// Elements as bytes for the wire: all values, and all places as 32-bit integers.
class Elements {
 public:
  Elements(std::int64_t count, c10::ScalarType dtype) : count_(count), dtype_(dtype) {}

  std::int64_t bytes() const;
  // `to`, `from`: bytes() bytes.
  void write(const at::Tensor& values, const at::Tensor& places, const at::Tensor& to) const;
  struct Read {
    at::Tensor values, places;  // places int32
  };
  Read read(const at::Tensor& from) const;

 private:
  std::int64_t count_;
  c10::ScalarType dtype_;
};

// Starts the sum of messages of which each rank sends the elements at `places`, as many on all ranks and each at
// most once.
std::unique_ptr<Pending> start_sum(const Call& call, const at::Tensor& values, const at::Tensor& places);

}  // namespace gradweave::runtime
