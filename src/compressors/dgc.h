// dgc: k values and k 32-bit indices, all-gathered: the workers choose different elements (Lin et al., "Deep Gradient
// Compression", ICLR 2018).
#pragma once

#include "compressors/compressor.h"

namespace gradweave::codec {

struct Dgc {
  double density = 0.001;  // the paper: 99.9 % are dropped
  double momentum = 0.9;
  double clip = 0;
  std::int64_t warm_up = 0;  // iterations; the paper: four epochs

  static constexpr auto parameters() {
    return std::array{
        parameter<&Dgc::density>("density", 1e-9, 1, "share of the elements that is sent"),
        parameter<&Dgc::momentum>("momentum", 0, 0.9999,
                                  "of each worker's velocity; 0: the optimizer's own is kept"),
        parameter<&Dgc::clip>("clip", 0, 1e9, "norm to which a message's gradient is clipped; 0: not at all"),
        parameter<&Dgc::warm_up>("warm_up", 0, 1e9,
                                 "number of first iterations in which the density falls from 1/4", true)};
  }
  CompressedCost gradient_cost(const CompressedMessage& message) const {
    return all_gathered(sparse_bytes(message, density), message.workers);
  }
  bool sends_momentum() const { return momentum > 0; }
};

inline CompressorInfo dgc() {
  return compressor<Dgc>(
      {.name = "dgc", .paper = "Deep Gradient Compression, ICLR 2018", .error_feedback = true});
}

}  // namespace gradweave::codec
