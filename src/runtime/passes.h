// Passes over parameters that would take several tensor operations: fused on the CPU, where memory bounds
// them.
#pragma once

#include <ATen/core/TensorBody.h>

namespace gradweave::runtime {

// Returns `tensor` as one dimension in memory order. The caller owes non-overlapping, dense memory.
at::Tensor flattened(const at::Tensor& tensor);

// The tensors of the next two are flat, contiguous, and of one dtype, device and length; none overlaps another.

// first <- source, second <- source. float32 on the CPU: one read, and writes that go past the caches, since
// nobody reads the copies soon.
void copy_twice(const at::Tensor& source, const at::Tensor& first, const at::Tensor& second);

// value <- value + (sum - world_size * own) * (1 / world_size): what ranks have on the average, less what
// this rank sent. Each operation is rounded, in this order, on every device. float32 on the CPU: in place in
// one pass; otherwise `sum` is left undefined.
void add_correction(const at::Tensor& value, const at::Tensor& sum, const at::Tensor& own, int world_size);

// Returns a number that tells the bytes of tensors apart, in memory order: the same on every machine. The caller owes
// non-overlapping, dense memory.
std::int64_t checksum_of(const at::Tensor& tensor);

}  // namespace gradweave::runtime
