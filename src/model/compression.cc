#include "gradweave/compression.h"

#include <algorithm>

#include "gradweave/error.h"

namespace gradweave {
namespace {

// A cast to a 16-bit float before an ordinary all-reduce.
CompressedCost half_precision(std::int64_t numel) { return {.equivalent_bytes = 2 * numel}; }

std::string names_of_all() {
  std::string names;
  for (const CompressorInfo& info : compressors()) {
    if (!names.empty()) names += ", ";
    names += info.name;
  }
  return names;
}

}  // namespace

const std::vector<CompressorInfo>& compressors() {
  static const std::vector<CompressorInfo> table = {
      {.name = "bf16", .paper = "cast to bfloat16", .error_feedback = false, .parameters = {}},
      {.name = "fp16", .paper = "cast to float16", .error_feedback = false, .parameters = {}},
  };
  return table;
}

CompressedCost compressed_cost(const Compression& compression, std::int64_t numel, std::int64_t element_bytes,
                               const Cluster& cluster) {
  const auto info = std::ranges::find(compressors(), compression.name, &CompressorInfo::name);
  if (info == compressors().end()) {
    throw InvalidInput("unknown compressor '" + compression.name + "'", "compression", "use one of " + names_of_all());
  }
  CompressedCost cost = half_precision(numel);
  const auto rate = cluster.compressor_rates.find(compression.name);
  if (rate != cluster.compressor_rates.end()) {
    const std::int64_t bytes = numel * element_bytes;
    cost.encode_ns = multiply_ceil(bytes, times_1000(rate->second.encode_us_per_byte));
    cost.decode_ns = multiply_ceil(bytes, times_1000(rate->second.decode_us_per_byte));
  }
  return cost;
}

}  // namespace gradweave
