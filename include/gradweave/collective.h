// The collectives that an op may be, and what it may carry.
#pragma once

#include <cstdint>
#include <string_view>

namespace gradweave {

enum class Collective : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kCompressed };

// Returns whether it is one half of an all-reduce.
constexpr bool is_half(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kAllGather;
}

enum class Payload : std::uint8_t { kGradient, kParameter };

// Returns its name in files and labels: "all_reduce", "reduce_scatter", "all_gather" or "compressed".
constexpr std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kCompressed:
      break;
  }
  return "compressed";
}

}  // namespace gradweave
