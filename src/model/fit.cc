#include "gradweave/fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "gradweave/error.h"

namespace gradweave {
namespace {

// Relative; what is off by more pulls no harder for being further off.
constexpr double kOrdinaryError = 0.05;
constexpr double kConverged = 1e-10;
constexpr int kRounds = 1000;

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

// Minimises sum_i weight_i ((s + r n_i - t_i) / t_i)^2 over s >= 0, r >= 0. With u = 1/t and v = n/t the errors
// are s u + r v - 1, and the normal equations
//   s sum(uu) + r sum(uv) = sum(u)
//   s sum(uv) + r sum(vv) = sum(v)
// Sizes are divided by `unit`, the largest one, so that both unknowns have the magnitude of a time.
LinkFit least_squares(std::span<const Measurement> measurements, std::span<const double> weights,
                      double unit) {
  double uu = 0, uv = 0, vv = 0, su = 0, sv = 0;
  for (std::size_t i = 0; i < measurements.size(); ++i) {
    const double u = 1 / measurements[i].us;
    const double v = static_cast<double>(measurements[i].bytes) / unit / measurements[i].us;
    const double w = weights[i];
    uu += w * u * u, uv += w * u * v, vv += w * v * v, su += w * u, sv += w * v;
  }
  // Sizes differ, so (u) and (v) are not parallel and the determinant is positive but for rounding.
  const double determinant = uu * vv - uv * uv;
  double startup = (su * vv - sv * uv) / determinant;
  double rate = (sv * uu - su * uv) / determinant;
  // The sum of squares is convex: where the free optimum is outside, the best point lies on the edge it left
  // by.
  if (!(startup >= 0)) startup = 0, rate = sv / vv;
  if (!(rate >= 0)) rate = 0, startup = su / uu;
  return {.startup_us = startup, .us_per_byte = rate / unit};
}

double relative_error(const LinkFit& fit, const Measurement& m) {
  return (fit.startup_us + static_cast<double>(m.bytes) * fit.us_per_byte - m.us) / m.us;
}

}  // namespace

LinkFit fit_link(std::span<const Measurement> measurements) {
  check(measurements);
  const double unit = static_cast<double>(std::ranges::max(measurements, {}, &Measurement::bytes).bytes);
  // Each round is a weighted least-squares problem that bounds Huber's sum from above and touches it at the
  // line of the round before, so that the sum never grows (Huber and Ronchetti, Robust Statistics, 7.8).
  std::vector<double> weights(measurements.size(), 1);
  LinkFit fit = least_squares(measurements, weights, unit);
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = kOrdinaryError / std::max(kOrdinaryError, std::abs(relative_error(fit, measurements[i])));
    const LinkFit better = least_squares(measurements, weights, unit);
    const bool same = std::abs(better.startup_us - fit.startup_us) <= kConverged * fit.startup_us &&
                      std::abs(better.us_per_byte - fit.us_per_byte) <= kConverged * fit.us_per_byte;
    fit = better;
    if (same) break;
  }
  fit.startup_us = rounded(fit.startup_us);
  fit.us_per_byte = rounded(fit.us_per_byte);
  double squares = 0;
  for (const Measurement& m : measurements) {
    const double error = relative_error(fit, m);
    squares += error * error;
    if (std::abs(error) > std::abs(fit.worst)) fit.worst = error, fit.worst_bytes = m.bytes;
  }
  fit.residual = std::sqrt(squares / static_cast<double>(measurements.size()));
  return fit;
}

}  // namespace gradweave
