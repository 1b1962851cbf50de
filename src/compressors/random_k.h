// random_k: k values, all-reduced: a common seed chooses the same elements everywhere (Stich et al., "Sparsified SGD
// with Memory", NeurIPS 2018).
#pragma once

#include "compressors/compressor.h"

namespace gradweave::codec {

struct RandomK {
  double density = 0.01;

  static constexpr auto parameters() {
    return std::array{parameter<&RandomK::density>("density", 1e-9, 1, "share of the elements that is sent")};
  }
  CompressedCost gradient_cost(const CompressedMessage& message) const {
    return all_reduced(kept_elements(message.numel, density) * message.element_bytes);
  }
};

inline CompressorInfo random_k() {
  return compressor<RandomK>(
      {.name = "random_k", .paper = "Sparsified SGD with Memory, NeurIPS 2018", .error_feedback = true});
}

}  // namespace gradweave::codec
