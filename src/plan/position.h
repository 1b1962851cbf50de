// The points of an iteration: their names and their order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gradweave/plan.h"

namespace gradweave {

// Returns its name in files and messages: "iteration_start" and so on.
constexpr std::string_view name_of(PointKind kind) {
  constexpr std::string_view kNames[] = {"iteration_start", "forward_start", "forward_end",
                                         "backward_start",  "backward_end",  "iteration_end"};
  return kNames[static_cast<std::size_t>(kind)];
}

// Returns whether each layer has its own point of this kind.
constexpr bool has_layer(PointKind kind) {
  return kind == PointKind::kForwardStart || kind == PointKind::kForwardEnd ||
         kind == PointKind::kBackwardEnd;
}

// Returns the place of a point among those of an iteration of `layers` layers, from 0 on. The point's layer must be
// one of them.
inline std::int64_t position_of(const Point& point, std::int64_t layers) {
  switch (point.kind) {
    case PointKind::kIterationStart:
      return 0;
    case PointKind::kForwardStart:
      return 1 + 2 * std::int64_t{point.layer};
    case PointKind::kForwardEnd:
      return 2 + 2 * std::int64_t{point.layer};
    case PointKind::kBackwardStart:
      return 2 * layers + 1;
    case PointKind::kBackwardEnd:
      return 3 * layers + 1 - point.layer;
    case PointKind::kIterationEnd:
      break;
  }
  return 3 * layers + 2;
}

}  // namespace gradweave
