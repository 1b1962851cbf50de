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
#include "gradweave/compression.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "gradweave/error.h"
#include "model/text.h"

namespace gradweave {
namespace {

constexpr std::int64_t kIndexBytes = 4;
constexpr std::int64_t kScaleBytes = 4;

CompressorParameter density(double default_value) {
  return {"density", default_value, 1e-9, 1, "share of the elements that is sent"};
}

std::string joined_names() {
  std::string names;
  for (const CompressorInfo& info : compressors()) names.append(names.empty() ? "" : ", ").append(info.name);
  return names;
}

double parameter(const CompressorInfo& info, const Compression& compression, std::string_view name) {
  const auto set = compression.parameters.find(std::string(name));
  if (set != compression.parameters.end()) return set->second;
  return std::ranges::find(info.parameters, name, &CompressorParameter::name)->default_value;
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
  return {.equivalent_bytes = (bytes * workers + 1) / 2, .half_startups = 1};
}

CompressedCost wire_cost(const CompressorInfo& info, const Compression& compression, std::int64_t numel,
                         std::int64_t element_bytes, std::int64_t workers) {
  const std::string_view name = info.name;
  if (name == "fp16" || name == "bf16")
    return {.equivalent_bytes = std::min<std::int64_t>(2, element_bytes) * numel};
  if (name == "ef_signsgd") return all_gathered((numel + 7) / 8 + kScaleBytes, workers);
  if (name == "power_sgd") {
    const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(numel))));
    const auto rank = std::min(static_cast<std::int64_t>(parameter(info, compression, "rank")), side);
    return {.equivalent_bytes = std::min(2 * side * rank, numel) * element_bytes, .half_startups = 4};
  }
  const double share = parameter(info, compression, "density");
  const auto kept = std::min(numel, static_cast<std::int64_t>(std::ceil(share * static_cast<double>(numel))));
  if (name == "random_k") return {.equivalent_bytes = kept * element_bytes};
  if (name == "ok_top_k")
    return {.equivalent_bytes = 3 * kept * (element_bytes + kIndexBytes) / 2, .half_startups = 2};
  return all_gathered(kept * (element_bytes + kIndexBytes), workers);  // top_k, dgc
}

}  // namespace

const std::vector<CompressorInfo>& compressors() {
  static const std::vector<CompressorInfo> table = {
      {"bf16", "cast to bfloat16", false, true, {}},
      {"dgc", "Deep Gradient Compression, ICLR 2018", true, false, {density(0.001)}},
      {"ef_signsgd", "Karimireddy et al., ICML 2019", true, false, {}},
      {"fp16", "cast to float16", false, true, {}},
      {"ok_top_k", "Ok-Topk, PPoPP 2022", true, false, {density(0.01)}},
      {"power_sgd", "PowerSGD, NeurIPS 2019", true, false, {{"rank", 4, 1, 1024, "rank of the factors"}}},
      {"random_k", "Sparsified SGD with Memory, NeurIPS 2018", true, true, {density(0.01)}},
      {"top_k", "Aji and Heafield, EMNLP 2017", true, false, {density(0.01)}},
  };
  return table;
}

const CompressorInfo& find_compressor(std::string_view name) {
  const auto found = std::ranges::find(compressors(), name, &CompressorInfo::name);
  if (found != compressors().end()) return *found;
  throw InvalidInput("unknown compressor " + in_quotes(name), "compression", "use one of " + joined_names());
}

CompressedCost compressed_cost(const Compression& compression, std::int64_t numel, std::int64_t element_bytes,
                               const Cluster& cluster) {
  const CompressorInfo& info = find_compressor(compression.name);
  check_parameters(info, compression);
  CompressedCost cost = wire_cost(info, compression, numel, element_bytes, cluster.workers);
  const auto rate = cluster.compressor_rates.find(compression.name);
  if (rate != cluster.compressor_rates.end()) {
    const std::int64_t bytes = numel * element_bytes;
    cost.encode_ns = multiply_ceil(bytes, times_1000(rate->second.encode_us_per_byte));
    cost.decode_ns = multiply_ceil(bytes, times_1000(rate->second.decode_us_per_byte));
  }
  return cost;
}

}  // namespace gradweave
