// power_sgd: of each matrix two factors of r (rows + columns) elements in all, r the rank, all-reduced one after the other
// (Vogels et al., NeurIPS 2019). A message without shapes counts as one square matrix, the shape that compresses best.
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
  // Returns the rank of the block's factors; 0: they are not smaller than the block, as of vectors, so it goes out as it is.
  std::int64_t rank_of(const BlockShape& block) const {
    const std::int64_t columns = std::min({rank, block.rows, block.columns});
    return columns * (block.rows + block.columns) < block.rows * block.columns ? columns : 0;
  }
  std::int64_t sent_elements(const BlockShape& block) const {
    const std::int64_t columns = rank_of(block);
    return columns == 0 ? block.length
                        : columns * (block.rows + block.columns) + block.length - block.rows * block.columns;
  }
  CompressedCost gradient_cost(const CompressedMessage& message) const {
    const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(message.numel))));
    const std::int64_t square = std::min(2 * side * std::min(rank, side), message.numel);
    CompressedCost cost = all_reduced((message.sent > 0 ? message.sent : square) * message.element_bytes);
    cost.half_startups = 4;
    return cost;
  }
};

inline CompressorInfo power_sgd() {
  return compressor<PowerSgd>(
      {.name = "power_sgd", .paper = "PowerSGD, NeurIPS 2019", .error_feedback = true});
}

}  // namespace gradweave::codec
