// The points of an iteration and the applies at them, in the order in which they pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gradweave/plan.h"
#include "plan/position.h"

namespace gradweave {

// Applies at one point follow each other in list order; backward_end passes before its applies, every other
// point after.
using PointRank = std::int64_t;

class PointOrder {
 public:
  explicit PointOrder(std::int32_t layers) : layers_(layers) {}

  // Returns the place of a point among the points of an iteration.
  std::int64_t index(const Point& point) const { return position_of(point, layers_); }

  PointRank of(const Point& point) const {
    const PointRank base = index(point) * kPointShift;
    return point.kind == PointKind::kBackwardEnd ? base : base + kPointShift - 1;
  }
  PointRank of_apply(const Point& at, std::size_t apply) const {
    return index(at) * kPointShift + 1 + static_cast<PointRank>(apply);
  }
  PointRank forward_start(std::int32_t layer) const {
    return of({.kind = PointKind::kForwardStart, .layer = layer});
  }
  PointRank forward_end(std::int32_t layer) const {
    return of({.kind = PointKind::kForwardEnd, .layer = layer});
  }
  PointRank backward_start() const { return of({.kind = PointKind::kBackwardStart}); }
  PointRank backward_end(std::int32_t layer) const {
    return of({.kind = PointKind::kBackwardEnd, .layer = layer});
  }
  PointRank iteration_end() const { return of({.kind = PointKind::kIterationEnd}); }

 private:
  static constexpr PointRank kPointShift = std::int64_t{1} << 32;  // room for the applies at a point

  std::int64_t layers_;
};

}  // namespace gradweave
