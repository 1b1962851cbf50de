// Gradient compressors as the cost model sees them: bytes on the wire, collective, encode and decode time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/plan.h"

namespace gradweave {

// One parameter of a compressor, with its range and default.
struct CompressorParameter {
  std::string_view name;
  double default_value;
  double minimum, maximum;
  std::string_view meaning;
};

struct CompressorInfo {
  std::string_view name;
  std::string_view paper;
  bool error_feedback = false;
  std::vector<CompressorParameter> parameters;
};

// Every compressor, sorted by name.
const std::vector<CompressorInfo>& compressors();

// What one compressed exchange of `numel` elements of `element_bytes` bytes costs on the network.
struct CompressedCost {
  // Bytes n for which an all-reduce of n bytes takes as long as this exchange takes on the wire; an all-gather of
  // s bytes per worker among P workers moves (P-1)*s per worker, an all-reduce of n bytes 2(P-1)/P*n.
  std::int64_t equivalent_bytes = 0;
  Nanoseconds encode_ns = 0;
  Nanoseconds decode_ns = 0;
};

// Returns the cost. Errors: InvalidInput for an unknown compressor or parameter (the message lists those that exist).
CompressedCost compressed_cost(const Compression& compression, std::int64_t numel, std::int64_t element_bytes,
                               const Cluster& cluster);

}  // namespace gradweave
