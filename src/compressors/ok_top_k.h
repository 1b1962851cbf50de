// ok_top_k: at most 6k (P-1)/P values and indices a worker in a split-and-reduce and an all-gather (Li and Hoefler,
// "Near-Optimal Sparse Allreduce", PPoPP 2022).
#pragma once

#include "compressors/compressor.h"

namespace gradweave::codec {

struct OkTopK {
  double density = 0.01;

  static constexpr auto parameters() {
    return std::array{parameter<&OkTopK::density>("density", 1e-9, 1, "share of the elements that is sent")};
  }
  CompressedCost gradient_cost(const CompressedMessage& message) const {
    const std::int64_t bytes = sparse_bytes(message, density);
    return {.equivalent_bytes = 3 * bytes / 2, .encoded_bytes = bytes};
  }
};

inline CompressorInfo ok_top_k() {
  return compressor<OkTopK>({.name = "ok_top_k", .paper = "Ok-Topk, PPoPP 2022", .error_feedback = true});
}

}  // namespace gradweave::codec
