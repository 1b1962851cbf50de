// Messages of int8, int4 and int2 (codec/groups.h) in tensors: by its kernels in the processor's memory, by torch's operators
// elsewhere. The same bits: each operation is rounded to float32, in the kernels' order, and random numbers are their hash.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

#include "codec/groups.h"

namespace gradweave::runtime {

// Tensors are flat, contiguous and of one device; `values` float32, messages bytes. Formats kInt8 and kInt4.

// Encodes `values` as the groups of a message from number `first_group` on, to the beginning of `to`, where groups lie one after
// another. Only the message's last group may be short.
void encode_groups(codec::Format format, const at::Tensor& values, std::uint64_t key,
                   std::int64_t first_group, const at::Tensor& to);

// Makes `to` what the whole message decodes to that begins at `message`, or adds it.
void decode_groups(codec::Format format, const at::Tensor& message, const at::Tensor& to);
void add_decoded_groups(codec::Format format, const at::Tensor& message, const at::Tensor& to);

}  // namespace gradweave::runtime
