// ef_signsgd: 1 bit an element and one 32-bit scale, all-gathered (Karimireddy et al., ICML 2019). Averages have a
// scale, the mean magnitude, for each group of 256, in two stages.
#pragma once

#include "compressors/quantized.h"

namespace gradweave::codec {

struct EfSignSgd {
  static constexpr std::int64_t kScaleBytes = 4;

  static constexpr const auto& parameters() { return kNoParameters<EfSignSgd>; }
  CompressedCost gradient_cost(const CompressedMessage& message) const {
    return all_gathered((message.numel + 7) / 8 + kScaleBytes, message.workers);
  }
  CompressedCost average_cost(const CompressedMessage& message) const {
    return grouped(Format::kSigns, message);
  }
};

inline CompressorInfo ef_signsgd() {
  return compressor<EfSignSgd>(
      {.name = "ef_signsgd", .paper = "Karimireddy et al., ICML 2019", .error_feedback = true});
}

}  // namespace gradweave::codec
