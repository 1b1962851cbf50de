// top_k: k = ceil(density * numel) values and k 32-bit indices, all-gathered: the workers choose different elements
// (Aji and Heafield, EMNLP 2017). Averages of parameters likewise.
#pragma once

#include "compressors/compressor.h"

namespace gradweave::codec {

struct TopK {
  double density = 0.01;

  static constexpr auto parameters() {
    return std::array{parameter<&TopK::density>("density", 1e-9, 1, "share of the elements that is sent")};
  }
  CompressedCost gradient_cost(const CompressedMessage& message) const {
    return all_gathered(sparse_bytes(message, density), message.workers);
  }
  CompressedCost average_cost(const CompressedMessage& message) const { return gradient_cost(message); }
};

inline CompressorInfo top_k() {
  return compressor<TopK>({.name = "top_k", .paper = "Aji and Heafield, EMNLP 2017", .error_feedback = true});
}

}  // namespace gradweave::codec
