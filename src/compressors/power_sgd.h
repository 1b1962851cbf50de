// power_sgd: two factors of r (rows + cols) elements, r the rank, all-reduced one after the other; a workload has no
// shapes, so a message counts as one square matrix, the shape that compresses best (Vogels et al., NeurIPS 2019).
#pragma once

#include <algorithm>
#include <cmath>

#include "compressors/compressor.h"

namespace gradweave::codec {

struct PowerSgd {
  std::int64_t rank = 4;
  std::int64_t warm_up = 0;  // iterations

  static constexpr auto parameters() {
    return std::array{parameter<&PowerSgd::rank>("rank", 1, 1024, "rank of the factors"),
                      parameter<&PowerSgd::warm_up>(
                          "warm_up", 0, 1e9, "number of first iterations in which everything is sent", true)};
  }
  CompressedCost gradient_cost(const CompressedMessage& message) const {
    const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(message.numel))));
    const std::int64_t columns = std::min(rank, side);
    CompressedCost cost = all_reduced(std::min(2 * side * columns, message.numel) * message.element_bytes);
    cost.half_startups = 4;
    return cost;
  }
};

inline CompressorInfo power_sgd() {
  return compressor<PowerSgd>(
      {.name = "power_sgd", .paper = "PowerSGD, NeurIPS 2019", .error_feedback = true});
}

}  // namespace gradweave::codec
