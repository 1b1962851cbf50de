// int8, int4, int2: groups of 256 elements of the message, the last may be short, each with a 32-bit scale = largest
// magnitude / 127 or / 7; rounded at random to the neighbours that scale has, so that the mean is right. int2: the nearest of
// four levels, by a scale that fits them to the group (codec/groups.h). Two stages:
// each rank sums its share decoded, encodes the sum again and all-gathers it, which moves 2 (P-1)/P of the encoded
// bytes; two ranks exchange their messages at once. Averages of parameters likewise. (Alistarh et al., "QSGD",
// NeurIPS 2017; scales by groups as in Dettmers et al., ICLR 2022)
#pragma once

#include "codec/groups.h"
#include "compressors/compressor.h"

namespace gradweave::codec {

// A message in groups, in two stages.
inline CompressedCost grouped(Format format, const CompressedMessage& message) {
  const std::int64_t bytes = encoded_bytes(format, message.numel);
  return {.equivalent_bytes = bytes, .half_startups = message.workers > 2 ? 2 : 1, .encoded_bytes = bytes};
}

template <Format format>
struct Quantized {
  static constexpr const auto& parameters() { return kNoParameters<Quantized>; }
  CompressedCost gradient_cost(const CompressedMessage& message) const { return grouped(format, message); }
  CompressedCost average_cost(const CompressedMessage& message) const { return grouped(format, message); }
};

inline CompressorInfo int2() {
  return compressor<Quantized<Format::kInt2>>(
      {.name = "int2", .paper = "MuLoCo, arXiv 2505.23725", .error_feedback = true, .halves = true});
}
inline CompressorInfo int4() {
  return compressor<Quantized<Format::kInt4>>(
      {.name = "int4", .paper = "QSGD, NeurIPS 2017", .error_feedback = true, .halves = true});
}
inline CompressorInfo int8() {
  return compressor<Quantized<Format::kInt8>>({.name = "int8",
                                               .paper = "QSGD, NeurIPS 2017",
                                               .error_feedback = true,
                                               .halves = true,
                                               .keeps_accuracy = true});
}

}  // namespace gradweave::codec
