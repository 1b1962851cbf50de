// The table of compressors, and what a message costs through one of them.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/quoted.h"
#include "compressors/cast.h"
#include "compressors/dgc.h"
#include "compressors/ef_signsgd.h"
#include "compressors/ok_top_k.h"
#include "compressors/power_sgd.h"
#include "compressors/quantized.h"
#include "compressors/random_k.h"
#include "compressors/top_k.h"
#include "gradweave/error.h"

namespace gradweave {
namespace {

std::string joined_names(Payload payload) {
  std::string names;
  for (const CompressorInfo& info : compressors()) {
    if (info.cost_of(payload) != nullptr) names.append(names.empty() ? "" : ", ").append(info.name);
  }
  return names;
}

void check_parameters(const CompressorInfo& info, const Compression& compression) {
  for (const auto& [name, value] : compression.parameters) {
    const CompressorParameter* known = info.parameter(name);
    const std::string where = "compression." + name;
    if (known == nullptr) {
      std::string names;
      for (const CompressorParameter& each : info.parameters)
        names.append(names.empty() ? "" : ", ").append(each.name);
      throw InvalidInput("compressor '" + compression.name + "' has no parameter '" + name + "'", where,
                         names.empty() ? "it has none" : "it has " + names);
    }
    if (!(value >= known->minimum && value <= known->maximum)) {
      throw InvalidInput(
          "is out of range", where,
          "give a value from " + std::to_string(known->minimum) + " to " + std::to_string(known->maximum));
    }
  }
}

}  // namespace

namespace codec {

CompressedCost all_gathered(std::int64_t bytes, std::int64_t workers) {
  __extension__ using Wide = __int128;
  const Wide equivalent = (static_cast<Wide>(bytes) * workers + 1) / 2;
  if (equivalent > (Wide{1} << 62)) {
    throw InvalidInput("all-gathering " + std::to_string(bytes) + " bytes from each of " +
                           std::to_string(workers) + " workers moves more than 2^62 bytes",
                       "compression",
                       "use fewer workers, smaller messages, or a compressor that is all-reduced");
  }
  return {
      .equivalent_bytes = static_cast<std::int64_t>(equivalent), .half_startups = 1, .encoded_bytes = bytes};
}

std::int64_t sparse_bytes(const CompressedMessage& message, double density) {
  return kept_elements(message.numel, density) * (message.element_bytes + kIndexBytes);
}

}  // namespace codec

std::int64_t kept_elements(std::int64_t numel, double density) {
  return std::min(numel, static_cast<std::int64_t>(std::ceil(density * static_cast<double>(numel))));
}

BlockShape block_shape(std::int64_t length, std::int64_t rows, bool whole) {
  if (rows < 2) return {.length = length, .rows = 1, .columns = length};
  if (!whole) rows = static_cast<std::int64_t>(std::sqrt(static_cast<double>(length)));
  return {.length = length, .rows = rows, .columns = length / rows};
}

const std::vector<CompressorInfo>& compressors() {
  static const std::vector<CompressorInfo> table = {
      codec::bf16(), codec::dgc(),      codec::ef_signsgd(), codec::fp16(),     codec::int2(), codec::int4(),
      codec::int8(), codec::ok_top_k(), codec::power_sgd(),  codec::random_k(), codec::top_k()};
  return table;
}

const CompressorParameter* CompressorInfo::parameter(std::string_view name) const {
  const auto found = std::ranges::find(parameters, name, &CompressorParameter::name);
  return found == parameters.end() ? nullptr : &*found;
}

const CompressorInfo& find_compressor(std::string_view name) {
  const auto found = std::ranges::find(compressors(), name, &CompressorInfo::name);
  if (found != compressors().end()) return *found;
  throw InvalidInput("unknown compressor " + in_quotes(name), "compression",
                     "use one of " + joined_names(Payload::kGradient));
}

Compression with_defaults(Compression compression) {
  for (const CompressorParameter& parameter : find_compressor(compression.name).parameters)
    compression.parameters.emplace(parameter.name, parameter.default_value);
  return compression;
}

bool sends_momentum(const Compression& compression) {
  const CompressorInfo& info = find_compressor(compression.name);
  return info.sends_momentum != nullptr && info.sends_momentum(compression.parameters);
}

CompressedCost wire_cost(const Compression& compression, Payload payload, const CompressedMessage& message) {
  const CompressorInfo& info = find_compressor(compression.name);
  check_parameters(info, compression);
  if (info.cost_of(payload) == nullptr) {
    throw InvalidInput("compressor '" + compression.name + "' can't compress averages of parameters",
                       "compression", "use one of " + joined_names(payload));
  }
  return info.cost_of(payload)(message, compression.parameters);
}

CompressedCost compressed_cost(const Compression& compression, Payload payload, std::int64_t numel,
                               std::int64_t element_bytes, const Cluster& cluster, std::int64_t sent) {
  CompressedCost cost = wire_cost(compression, payload, {numel, element_bytes, participants(cluster), sent});
  const auto rate = cluster.compressor_rates.find(compression.name);
  if (rate != cluster.compressor_rates.end()) {
    const std::int64_t bytes = numel * element_bytes;
    cost.encode_ns = multiply_ceil(bytes, times_1000(rate->second.encode_us_per_byte));
    cost.decode_ns = multiply_ceil(bytes, times_1000(rate->second.decode_us_per_byte));
  }
  return cost;
}

}  // namespace gradweave
