// Compressors as the cost model sees them: bytes on the wire, collective, encode and decode time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/collective.h"

namespace gradweave {

// What a message goes through, as an op or the options of a scheme say it.
struct Compression {
  std::string name;  // empty: none
  std::map<std::string, double> parameters;
  friend bool operator==(const Compression&, const Compression&) = default;
};

// One parameter of a compressor, with its range (inclusive) and default.
struct CompressorParameter {
  std::string_view name;
  double default_value = 0;
  double minimum = 0, maximum = 0;
  std::string_view meaning;
  bool integer = false;
  bool at_start = false;  // of the first iterations of a run: what is measured is without
};

// What one compressed exchange costs, in terms of a link's all-reduce cost model.
struct CompressedCost {
  // n such that an all-reduce of n bytes moves as much: an all-gather of s bytes from each of P workers
  // brings (P-1) s bytes to each, an all-reduce of n bytes 2 (P-1)/P n; so n = s P / 2.
  std::int64_t equivalent_bytes = 0;
  // Start-ups in halves of an all-reduce's: an all-gather or a reduce-scatter has one, an all-reduce two.
  std::int64_t half_startups = 2;
  // What one worker's own message takes once it is encoded.
  std::int64_t encoded_bytes = 0;
  // From the cluster's measured rates; 0 where none is given.
  Nanoseconds encode_ns = 0;
  Nanoseconds decode_ns = 0;
};

// What is exchanged: `numel` elements of `element_bytes` bytes among `workers` workers.
struct CompressedMessage {
  std::int64_t numel = 0, element_bytes = 4, workers = 1;
  std::int64_t sent = 0;  // elements, where the shapes of all blocks are known and say so; else 0
};

// A block of a message seen as a matrix, row by row. What rows * columns leave out at its end is no part of it.
struct BlockShape {
  std::int64_t length = 0;  // of the block, elements
  std::int64_t rows = 1, columns = 0;
};

// Returns the shape of a block of `length` elements of a tensor of so many rows (matrix_rows()): a whole tensor is a matrix of
// as many rows, a part of one is as near to a square as can be; of a vector it is a vector.
BlockShape block_shape(std::int64_t length, std::int64_t rows, bool whole);

// All that is known of one compressor.
struct CompressorInfo {
  std::string_view name;
  std::string_view paper;
  bool error_feedback = false;  // what is not sent stays in a residual
  bool halves = false;  // the exchange of a gradient can be split into a reduce-scatter and an all-gather
  // Training by its gradients has kept the accuracy (docs/results/accuracy.md), so `auto` may take it.
  bool keeps_accuracy = false;
  std::vector<CompressorParameter> parameters;
  // Returns what goes over the wire; parameters that `values` leave out have their defaults.
  CompressedCost (*gradient_cost)(const CompressedMessage& message,
                                  const std::map<std::string, double>& values) = nullptr;
  // The same for an average of parameters, of which what was gained since a common anchor is sent; null: the
  // compressor serves gradients only.
  CompressedCost (*average_cost)(const CompressedMessage& message,
                                 const std::map<std::string, double>& values) = nullptr;
  // Returns how many elements are sent of a gradient's block, where its shape decides that; null: it never does.
  std::int64_t (*sent_elements)(const BlockShape& block,
                                const std::map<std::string, double>& values) = nullptr;
  // Returns whether it sends momentum, so that the optimizer must have none of its own; null: never.
  bool (*sends_momentum)(const std::map<std::string, double>& values) = nullptr;

  // Returns the parameter called `name`, null if there is none.
  const CompressorParameter* parameter(std::string_view name) const;
  auto cost_of(Payload payload) const { return payload == Payload::kGradient ? gradient_cost : average_cost; }
};

// Returns how many of `numel` elements a density keeps.
std::int64_t kept_elements(std::int64_t numel, double density);

// Returns every compressor, sorted by name.
const std::vector<CompressorInfo>& compressors();

// Returns the compressor called `name`. Errors: InvalidInput listing the valid names.
const CompressorInfo& find_compressor(std::string_view name);

// Returns the compression with the parameters that it leaves out at their defaults. The caller owes a known
// compressor.
Compression with_defaults(Compression compression);

// Returns whether the compressor sends momentum. The caller owes a known compressor.
bool sends_momentum(const Compression& compression);

// Returns what exchanging the message takes, without the time to encode and decode. Errors: InvalidInput for an
// unknown compressor or parameter, a value out of range, a compressor that does not serve such a payload, or more
// than 2^62 bytes.
CompressedCost wire_cost(const Compression& compression, Payload payload, const CompressedMessage& message);

// Returns the cost of exchanging `numel` elements of `element_bytes` bytes, of which `sent` as in CompressedMessage, among all
// who take part in an op on the cluster's links, with its rates of encoding. Errors: those of wire_cost().
CompressedCost compressed_cost(const Compression& compression, Payload payload, std::int64_t numel,
                               std::int64_t element_bytes, const Cluster& cluster, std::int64_t sent = 0);

}  // namespace gradweave
