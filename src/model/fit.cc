#include "gradweave/fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "gradweave/error.h"

namespace gradweave {
namespace {

void check(std::span<const Measurement> measurements) {
  for (std::size_t i = 0; i < measurements.size(); ++i) {
    const std::string where = "measurements[" + std::to_string(i) + "]";
    if (measurements[i].bytes < 0)
      throw InvalidInput("a negative size", where + ".bytes", "give sizes in bytes");
    if (!(measurements[i].us > 0) || !std::isfinite(measurements[i].us)) {
      throw InvalidInput("a time that is not positive", where + ".us", "give times in microseconds");
    }
  }
  const auto differs = [&](const Measurement& m) { return m.bytes != measurements.front().bytes; };
  if (std::ranges::none_of(measurements, differs)) {
    throw InvalidInput("fewer than two different sizes", "measurements",
                       "measure a small and a large message at least");
  }
}

double rounded(double value) {
  if (value == 0) return 0;
  const double scale = std::pow(10.0, 8 - std::floor(std::log10(value)));
  return std::round(value * scale) / scale;
}

}  // namespace

LinkFit fit_link(std::span<const Measurement> measurements) {
  check(measurements);
  // With u = 1/t and v = n/t the errors are s u + r v - 1, and the normal equations
  //   s sum(uu) + r sum(uv) = sum(u)
  //   s sum(uv) + r sum(vv) = sum(v)
  // Sizes are divided by the largest one, so that both unknowns have the magnitude of a time.
  const double unit = static_cast<double>(std::ranges::max(measurements, {}, &Measurement::bytes).bytes);
  double uu = 0, uv = 0, vv = 0, su = 0, sv = 0;
  for (const Measurement& m : measurements) {
    const double u = 1 / m.us;
    const double v = static_cast<double>(m.bytes) / unit / m.us;
    uu += u * u, uv += u * v, vv += v * v, su += u, sv += v;
  }
  // Sizes differ, so (u) and (v) are not parallel and the determinant is positive but for rounding.
  const double determinant = uu * vv - uv * uv;
  double startup = (su * vv - sv * uv) / determinant;
  double rate = (sv * uu - su * uv) / determinant;
  // The sum of squares is convex: where the free optimum is outside, the best point lies on the edge it left
  // by.
  if (!(startup >= 0)) startup = 0, rate = sv / vv;
  if (!(rate >= 0)) rate = 0, startup = su / uu;

  LinkFit fit{.startup_us = rounded(startup), .us_per_byte = rounded(rate / unit)};
  double squares = 0;
  for (const Measurement& m : measurements) {
    const double error = (fit.startup_us + static_cast<double>(m.bytes) * fit.us_per_byte - m.us) / m.us;
    squares += error * error;
    if (std::abs(error) > std::abs(fit.worst)) fit.worst = error, fit.worst_bytes = m.bytes;
  }
  fit.residual = std::sqrt(squares / static_cast<double>(measurements.size()));
  return fit;
}

}  // namespace gradweave
