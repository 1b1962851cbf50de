// Wire formats, with k = ceil(density * numel) elements kept, P workers, r the rank:
//   fp16, bf16   2 bytes an element, all-reduced; narrower elements stay as they are
//   top_k, dgc   k values and k 32-bit indices, all-gathered: the workers choose different elements
//                (Aji and Heafield, EMNLP 2017; Lin et al., "Deep Gradient Compression", ICLR 2018)
//   random_k     k values, all-reduced: a common seed chooses the same elements everywhere
//                (Stich et al., "Sparsified SGD with Memory", NeurIPS 2018)
//   ef_signsgd   1 bit an element and one 32-bit scale, all-gathered (Karimireddy et al., ICML 2019)
//   power_sgd    two factors of r (rows + cols) elements, all-reduced one after the other; a workload has no
//                shapes, so a message counts as one square matrix, the shape that compresses best
//                (Vogels et al., NeurIPS 2019)
//   ok_top_k     at most 6k (P-1)/P values and indices a worker in a split-and-reduce and an all-gather
//                (Li and Hoefler, "Near-Optimal Sparse Allreduce", PPoPP 2022)
//   int8, int4   groups of 256 elements of the message, the last may be short, each with a 32-bit scale =
//                largest magnitude / 127 or / 7; rounded at random to the neighbours that scale has, so that the
//                mean is right. Two stages: each rank sums its share decoded, encodes the sum again and all-gathers
//                it, which moves 2 (P-1)/P of the encoded bytes; two ranks exchange their messages at once.
//                (Alistarh et al., "QSGD", NeurIPS 2017; scales by groups as in Dettmers et al., ICLR 2022)
//
// Averages of parameters send what was gained since a common anchor (docs/plan.md). int8 and int4 do that as for
// gradients, top_k too; ef_signsgd has a scale, the mean magnitude, for each group of 256, in two stages.
#include "gradweave/compression.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/quoted.h"
#include "codec/groups.h"
#include "gradweave/error.h"

namespace gradweave {
namespace {

constexpr std::int64_t kIndexBytes = 4;
constexpr std::int64_t kScaleBytes = 4;

CompressorParameter density(double default_value) {
  return {"density", default_value, 1e-9, 1, "share of the elements that is sent"};
}

CompressorParameter warm_up() {
  return {"warm_up", 0, 0, 1e9,
          "first iterations, in which dgc's density falls from 1/4 and power_sgd sends all"};
}

std::string joined_names(Payload payload) {
  std::string names;
  for (const CompressorInfo& info : compressors()) {
    if (info.cost_of(payload) != nullptr) names.append(names.empty() ? "" : ", ").append(info.name);
  }
  return names;
}

double parameter(const CompressorInfo& info, const Compression& compression) {
  if (info.parameters.empty()) return 0;
  const auto set = compression.parameters.find(std::string(info.parameters.front().name));
  return set == compression.parameters.end() ? info.parameters.front().default_value : set->second;
}

void check_parameters(const CompressorInfo& info, const Compression& compression) {
  for (const auto& [name, value] : compression.parameters) {
    const auto known = std::ranges::find(info.parameters, name, &CompressorParameter::name);
    const std::string where = "compression." + name;
    if (known == info.parameters.end()) {
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

// An all-gather of `bytes` bytes from each worker.
CompressedCost all_gathered(std::int64_t bytes, std::int64_t workers) {
  return {.equivalent_bytes = (bytes * workers + 1) / 2, .half_startups = 1, .encoded_bytes = bytes};
}

// An all-reduce of `bytes` bytes that are summed as they are.
CompressedCost all_reduced(std::int64_t bytes) { return {.equivalent_bytes = bytes, .encoded_bytes = bytes}; }

CompressedCost cast_to_two_bytes(const CompressedMessage& message, double) {
  return all_reduced(std::min<std::int64_t>(2, message.element_bytes) * message.numel);
}

CompressedCost signs(const CompressedMessage& message, double) {
  return all_gathered((message.numel + 7) / 8 + kScaleBytes, message.workers);
}

// Groups, in two stages.
template <codec::Format format>
CompressedCost grouped(const CompressedMessage& message, double) {
  const std::int64_t bytes = codec::encoded_bytes(format, message.numel);
  return {.equivalent_bytes = bytes, .half_startups = message.workers > 2 ? 2 : 1, .encoded_bytes = bytes};
}

CompressedCost low_rank(const CompressedMessage& message, double rank) {
  const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(message.numel))));
  const std::int64_t columns = std::min(static_cast<std::int64_t>(rank), side);
  CompressedCost cost = all_reduced(std::min(2 * side * columns, message.numel) * message.element_bytes);
  cost.half_startups = 4;
  return cost;
}

CompressedCost own_elements(const CompressedMessage& message, double density) {
  return all_gathered(kept_elements(message.numel, density) * (message.element_bytes + kIndexBytes),
                      message.workers);
}

CompressedCost common_elements(const CompressedMessage& message, double density) {
  return all_reduced(kept_elements(message.numel, density) * message.element_bytes);
}

CompressedCost split_and_reduced(const CompressedMessage& message, double density) {
  const std::int64_t bytes = kept_elements(message.numel, density) * (message.element_bytes + kIndexBytes);
  return {.equivalent_bytes = 3 * bytes / 2, .encoded_bytes = bytes};
}

}  // namespace

std::int64_t kept_elements(std::int64_t numel, double density) {
  return std::min(numel, static_cast<std::int64_t>(std::ceil(density * static_cast<double>(numel))));
}

const std::vector<CompressorInfo>& compressors() {
  static const std::vector<CompressorInfo> table = {
      {.name = "bf16", .paper = "cast to bfloat16", .halves = true, .wire_cost = cast_to_two_bytes},
      {.name = "dgc",
       .paper = "Deep Gradient Compression, ICLR 2018",
       .error_feedback = true,
       .parameters = {density(0.001),
                      {"momentum", 0.9, 0, 0.9999,
                       "of each worker's velocity; 0: the optimizer's own is kept"},
                      {"clip", 0, 0, 1e9, "norm to which a message's gradient is clipped; 0: not at all"},
                      warm_up()},
       .wire_cost = own_elements},
      {.name = "ef_signsgd",
       .paper = "Karimireddy et al., ICML 2019",
       .error_feedback = true,
       .wire_cost = signs,
       .average_cost = grouped<codec::Format::kSigns>},
      {.name = "fp16", .paper = "cast to float16", .halves = true, .wire_cost = cast_to_two_bytes},
      {.name = "int4",
       .paper = "QSGD, NeurIPS 2017",
       .error_feedback = true,
       .halves = true,
       .wire_cost = grouped<codec::Format::kInt4>,
       .average_cost = grouped<codec::Format::kInt4>},
      {.name = "int8",
       .paper = "QSGD, NeurIPS 2017",
       .error_feedback = true,
       .halves = true,
       .wire_cost = grouped<codec::Format::kInt8>,
       .average_cost = grouped<codec::Format::kInt8>},
      {.name = "ok_top_k",
       .paper = "Ok-Topk, PPoPP 2022",
       .error_feedback = true,
       .parameters = {density(0.01)},
       .wire_cost = split_and_reduced},
      {.name = "power_sgd",
       .paper = "PowerSGD, NeurIPS 2019",
       .error_feedback = true,
       .parameters = {{"rank", 4, 1, 1024, "rank of the factors"}, warm_up()},
       .wire_cost = low_rank},
      {.name = "random_k",
       .paper = "Sparsified SGD with Memory, NeurIPS 2018",
       .error_feedback = true,
       .parameters = {density(0.01)},
       .wire_cost = common_elements},
      {.name = "top_k",
       .paper = "Aji and Heafield, EMNLP 2017",
       .error_feedback = true,
       .parameters = {density(0.01)},
       .wire_cost = own_elements,
       .average_cost = own_elements},
  };
  return table;
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

CompressedCost wire_cost(const Compression& compression, Payload payload, const CompressedMessage& message) {
  const CompressorInfo& info = find_compressor(compression.name);
  check_parameters(info, compression);
  if (info.cost_of(payload) == nullptr) {
    throw InvalidInput("compressor '" + compression.name + "' does not serve averages of parameters",
                       "compression", "use one of " + joined_names(payload));
  }
  return info.cost_of(payload)(message, parameter(info, compression));
}

CompressedCost compressed_cost(const Compression& compression, Payload payload, std::int64_t numel,
                               std::int64_t element_bytes, const Cluster& cluster) {
  CompressedCost cost = wire_cost(compression, payload, {numel, element_bytes, cluster.workers});
  const auto rate = cluster.compressor_rates.find(compression.name);
  if (rate != cluster.compressor_rates.end()) {
    const std::int64_t bytes = numel * element_bytes;
    cost.encode_ns = multiply_ceil(bytes, times_1000(rate->second.encode_us_per_byte));
    cost.decode_ns = multiply_ceil(bytes, times_1000(rate->second.decode_us_per_byte));
  }
  return cost;
}

}  // namespace gradweave
