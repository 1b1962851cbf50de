// The cost model of a link from measurements of its all-reduces.
#pragma once

#include <cstdint>
#include <span>

namespace gradweave {

// One all-reduce of `bytes` bytes took `us` microseconds.
struct Measurement {
  std::int64_t bytes = 0;
  double us = 0;
};

// time = startup_us + bytes * us_per_byte.
struct LinkFit {
  double startup_us = 0;
  double us_per_byte = 0;
  double residual = 0;           // root mean square of the relative errors
  double worst = 0;              // the largest relative error, with its sign: (fitted - measured) / measured
  std::int64_t worst_bytes = 0;  // and where it is
};

// Returns the line, neither term negative, that minimises a sum over the *relative* errors: absolute ones
// would let the largest messages alone decide, and give the start-up their noise. Errors count squared up to
// 5% and linearly beyond (P. Huber, Robust Estimation of a Location Parameter, 1964): whatever disturbs a
// measurement makes it longer, most of all a short one, and must not turn the line.
//   minimise  sum_i h((s + r n_i - t_i) / t_i),  s >= 0, r >= 0
//   h(e) = e^2 if |e| <= k, else 2 k |e| - k^2;  k = 0.05
// Both terms are rounded to 9 significant digits, so that the line survives a file unchanged.
// Errors: InvalidInput if a size is negative, a time is not positive and finite, or fewer than two sizes
// differ. Complexity: 10,000 passes over the measurements; 8 of them take a millisecond.
LinkFit fit_link(std::span<const Measurement> measurements);

}  // namespace gradweave
