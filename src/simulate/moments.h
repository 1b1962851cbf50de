// The moments of an iteration, in the order in which they pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gradweave/plan.h"
#include "plan/position.h"

namespace gradweave {

// Applies at one point follow each other in list order; backward_end passes before its applies, every other
// point after.
using Moment = std::int64_t;

class Moments {
 public:
  explicit Moments(std::int32_t layers) : layers_(layers) {}

  // Returns the place of a point among the points of an iteration.
  std::int64_t index(const Point& point) const { return position_of(point, layers_); }

  Moment of(const Point& point) const {
    const Moment base = index(point) * kPointShift;
    return point.kind == PointKind::kBackwardEnd ? base : base + kPointShift - 1;
  }
  Moment of_apply(const Point& at, std::size_t apply) const {
    return index(at) * kPointShift + 1 + static_cast<Moment>(apply);
  }
  Moment forward_start(std::int32_t layer) const {
    return of({.kind = PointKind::kForwardStart, .layer = layer});
  }
  Moment forward_end(std::int32_t layer) const {
    return of({.kind = PointKind::kForwardEnd, .layer = layer});
  }
  Moment backward_start() const { return of({.kind = PointKind::kBackwardStart}); }
  Moment backward_end(std::int32_t layer) const {
    return of({.kind = PointKind::kBackwardEnd, .layer = layer});
  }
  Moment iteration_end() const { return of({.kind = PointKind::kIterationEnd}); }

 private:
  static constexpr Moment kPointShift = std::int64_t{1} << 32;  // room for the applies at a point

  std::int64_t layers_;
};

}  // namespace gradweave
