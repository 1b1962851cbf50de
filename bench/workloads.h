// Synthetic inputs of any size for the benchmarks.
#pragma once

#include <cstdint>
#include <string>

#include "gradweave/cluster.h"
#include "gradweave/workload.h"

namespace gradweave::bench {

// Returns `tensors` tensors, two to a layer, sizes skewed as in real networks, coverage rate about 1 on
// cluster().
inline Workload workload(std::int64_t tensors) {
  Workload workload{.name = "synthetic"};
  std::uint64_t random = 88172645463325252ULL;  // xorshift64: the same sizes on every machine
  for (std::int64_t l = 0; l < (tensors + 1) / 2; ++l) {
    const std::string name = "layer" + std::to_string(l);
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    const auto weights = static_cast<std::int64_t>(1000 + random % 400'000);
    Layer layer{.name = name, .forward_ns = 100'000 + weights, .backward_ns = 200'000 + 2 * weights};
    layer.tensors.push_back({name + ".weight", weights});
    if (2 * l + 1 < tensors) layer.tensors.push_back({name + ".bias", 512});
    workload.layers.push_back(layer);
  }
  return workload;
}

inline Cluster cluster(std::size_t links = 1, std::int32_t concurrency = 1) {
  Cluster cluster{.workers = 16};
  for (std::size_t k = 0; k < links; ++k) {
    cluster.links.push_back({.name = "eth" + std::to_string(k),
                             .startup_ns = 50'000,
                             .us_per_byte = {8 + static_cast<std::int64_t>(k), 4},
                             .concurrency = concurrency});
  }
  return cluster;
}

}  // namespace gradweave::bench
