// DeFT Table II: VGG-19 in six buckets, the workload whose published figures the simulator must show.
#pragma once

#include <array>
#include <string>

#include "gradweave/cluster.h"
#include "gradweave/workload.h"

namespace gradweave {

inline Workload table2_workload() {
  constexpr std::array<std::int64_t, 6> kForward = {1238, 28799, 4801, 1899, 326, 103};
  constexpr std::array<std::int64_t, 6> kBackward = {72496, 12786, 4872, 2319, 484, 162};
  constexpr std::array<std::int64_t, 6> kCommunication = {1968, 11262, 15447, 178643, 31754, 8651};
  constexpr std::array<std::int64_t, 6> kElements = {555072, 7669760, 7079424, 107480576, 16781312, 4101096};
  Workload workload{.name = "vgg19"};
  for (std::size_t l = 0; l < kForward.size(); ++l) {
    const std::string name = "bucket" + std::to_string(l + 1);
    workload.layers.push_back({.name = name,
                               .forward_ns = kForward[l] * 1000,
                               .backward_ns = kBackward[l] * 1000,
                               .communication_ns = kCommunication[l] * 1000,
                               .tensors = {{name + ".weight", kElements[l]}}});
  }
  return workload;
}

inline Cluster table2_cluster(std::int32_t concurrency = 1) {
  return {.workers = 16,
          .workers_per_node = 1,
          .links = {{.name = "eth0", .us_per_byte = {8, 4}, .concurrency = concurrency}}};
}

}  // namespace gradweave
