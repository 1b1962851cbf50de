#include "gradweave/fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/statistics.h"
#include "gradweave/error.h"

namespace gradweave {
namespace {

// Relative; what is off by more pulls no harder for being further off.
constexpr double kOrdinaryError = 0.05;
constexpr int kHalvings = 100;
constexpr double kLeastBurst = 0.1;  // of a message

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

double relative_error(const LinkFit& fit, const Measurement& m) {
  return (fit.startup_us + static_cast<double>(m.bytes) * fit.us_per_byte - m.us) / m.us;
}

struct Gradient {
  double by_startup = 0, by_rate = 0;
};

// Of half the sum that fit_link() minimises.
Gradient gradient(std::span<const Measurement> measurements, const LinkFit& fit) {
  Gradient sum;
  for (const Measurement& m : measurements) {
    const double pull = std::clamp(relative_error(fit, m), -kOrdinaryError, kOrdinaryError) / m.us;
    sum.by_startup += pull;
    sum.by_rate += pull * static_cast<double>(m.bytes);
  }
  return sum;
}

// Returns where in [0, high] a function that does not fall reaches 0: 0 if it is positive there already.
template <typename Function>
double zero_of(double high, Function rising) {
  if (rising(0.0) >= 0) return 0;
  double low = 0;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::midpoint(low, high);
    (rising(middle) < 0 ? low : high) = middle;
  }
  return high;
}

void add_burst(std::vector<Measurement>& trains, double burst_us) {
  if (trains.empty()) return;
  const double startup_us = trains.front().us;
  const double us_per_byte = trains.back().us / static_cast<double>(trains.back().bytes);
  for (Measurement& each : trains)
    each.us += std::min({burst_us, startup_us, static_cast<double>(each.bytes) * us_per_byte});
}

}  // namespace

LinkFit fit_link(std::span<const Measurement> measurements) {
  check(measurements);
  double longest = 0, slowest = 0;
  for (const Measurement& m : measurements) {
    longest = std::max(longest, m.us);
    if (m.bytes > 0) slowest = std::max(slowest, m.us / static_cast<double>(m.bytes));
  }
  // The sum is convex, and so is its least value over the start-ups as a function of the rate, whose slope is the
  // sum's own slope there.
  const auto best_startup = [&](double rate) {
    return zero_of(longest, [&](double startup) {
      return gradient(measurements, {startup, rate}).by_startup;
    });
  };
  LinkFit fit;
  const double best_rate = zero_of(slowest, [&](double rate) {
    return gradient(measurements, {best_startup(rate), rate}).by_rate;
  });
  fit.startup_us = rounded(best_startup(best_rate));
  fit.us_per_byte = rounded(best_rate);
  double squares = 0;
  for (const Measurement& m : measurements) {
    const double error = relative_error(fit, m);
    squares += error * error;
    if (std::abs(error) > std::abs(fit.worst)) fit.worst = error, fit.worst_bytes = m.bytes;
  }
  fit.residual = std::sqrt(squares / static_cast<double>(measurements.size()));
  return fit;
}

double burst_of(std::vector<double> rested, std::vector<double> following) {
  std::ranges::sort(following);
  const double early = following[following.size() / 4];
  const auto earlier = std::ranges::count_if(rested, [&](double us) { return us < early; });
  if (5 * earlier < 3 * std::ssize(rested)) return 0;
  const double usual = median_of(std::move(following));
  const double burst = usual - median_of(std::move(rested));
  return burst < kLeastBurst * usual ? 0 : burst;
}

LinkMeasurements without_burst(LinkMeasurements measured, double burst_us) {
  for (auto* trains : {&measured.all_reduce, &measured.reduce_scatter, &measured.all_gather})
    add_burst(*trains, burst_us);
  return measured;
}

}  // namespace gradweave
