// fp16, bf16: 2 bytes an element, all-reduced; narrower elements stay as they are.
#pragma once

#include <algorithm>

#include "compressors/compressor.h"

namespace gradweave::codec {

struct Cast {
  static constexpr const auto& parameters() { return kNoParameters<Cast>; }
  CompressedCost gradient_cost(const CompressedMessage& message) const {
    return all_reduced(std::min<std::int64_t>(2, message.element_bytes) * message.numel);
  }
};

inline CompressorInfo bf16() {
  return compressor<Cast>(
      {.name = "bf16", .paper = "cast to bfloat16", .halves = true, .keeps_accuracy = true});
}
inline CompressorInfo fp16() {
  return compressor<Cast>(
      {.name = "fp16", .paper = "cast to float16", .halves = true, .keeps_accuracy = true});
}

}  // namespace gradweave::codec
