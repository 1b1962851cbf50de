// The order of an iteration's points.
#pragma once

#include <cstdint>

#include "gradweave/plan.h"

namespace gradweave {

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
