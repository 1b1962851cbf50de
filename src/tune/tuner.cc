#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/splitmix.h"
#include "base/statistics.h"
#include "gradweave/tune.h"
#include "solve/bayesian.h"

namespace gradweave {
namespace {

constexpr double kXi = 0.1;               // DeAR, section IV.B
constexpr int kSpread = 3;                // points after the start, before a model is asked
constexpr int kRepeats = 6;               // measurements after the last trial
constexpr std::size_t kMeasurements = 3;  // that a plan is measured which may stay
constexpr int kAssumed = 20;              // in a row, before the search ends

// Element `number` of J. H. Halton's sequence in this base: digits mirrored at the point.
double halton(int number, int base) {
  double result = 0, digit = 1;
  for (; number > 0; number /= base) {
    digit /= base;
    result += digit * (number % base);
  }
  return result;
}

double value_at(const TunedParameter& parameter, double coordinate) {
  const auto [low, high, scale] = parameter.range;
  double value =
      scale == Scale::kLogarithmic ? low * std::pow(high / low, coordinate) : low + (high - low) * coordinate;
  if (value > 0) {  // to three digits: readable, and the same on every machine
    const double unit = std::pow(10, std::floor(std::log10(value)) - 2);
    value = std::round(value / unit) * unit;
  }
  if (parameter.integer) value = std::round(value);
  return std::clamp(value, low, high);
}

double coordinate_of(const TunedParameter& parameter, double value) {
  const auto [low, high, scale] = parameter.range;
  if (!(low < high)) return 0;
  value = std::clamp(value, low, high);
  return scale == Scale::kLogarithmic ? std::log(value / low) / std::log(high / low)
                                      : (value - low) / (high - low);
}

}  // namespace

double Tuner::Trial::median() const { return median_of(seconds); }

Tuner::Tuner(std::vector<TunedParameter> parameters, std::vector<double> start, int trials,
             std::uint64_t seed)
    : parameters_(std::move(parameters)),
      start_(std::move(start)),
      trials_left_(trials),
      repeats_left_(kRepeats),
      assumptions_left_(kAssumed),
      seed_(seed) {}

std::optional<std::size_t> Tuner::next() {
  if (!pending_) pending_ = choose();
  return pending_;
}

std::optional<std::size_t> Tuner::choose() {
  if (trials_.empty()) {
    trials_.push_back({.values = start_});
    return 0;
  }
  searching_ = searching_ && trials_left_ > 0 && assumptions_left_ > 0;
  if (searching_) {
    std::vector<double> values = propose();
    searching_ = !values.empty();
    if (searching_) {
      trials_.push_back({.values = std::move(values)});
      return trials_.size() - 1;
    }
  }
  // What leads may have been lucky, and the start is the oldest measurement.
  const std::size_t lead = leader(1);
  const std::size_t again = trials_[0].seconds.size() <= trials_[lead].seconds.size() ? 0 : lead;
  if (lead == 0 || repeats_left_ == 0 || trials_[again].seconds.size() == kMeasurements) return std::nullopt;
  --repeats_left_;
  return again;
}

void Tuner::add(double seconds) {
  trials_[*pending_].seconds.push_back(seconds);
  if (searching_) --trials_left_;
  assumptions_left_ = kAssumed;
  pending_.reset();
}

void Tuner::assume(double seconds) {
  trials_[*pending_].seconds.push_back(seconds);
  trials_[*pending_].assumed = true;
  --assumptions_left_;
  pending_.reset();
}

std::size_t Tuner::best() const { return leader(std::min<std::size_t>(2, trials_[0].seconds.size())); }

std::size_t Tuner::leader(std::size_t measurements) const {
  std::size_t best = 0;
  for (std::size_t i = 1; i < trials_.size(); ++i) {
    const Trial& trial = trials_[i];
    if (trial.assumed || trial.seconds.size() < measurements) continue;
    if (trial.median() < trials_[best].median()) best = i;
  }
  return best;
}

std::vector<double> Tuner::propose() {
  if (parameters_.empty()) return {static_cast<double>(trials_.size())};
  constexpr std::array kBases = {2, 3, 5};
  while (spread_ < kSpread) {
    ++spread_;
    CubePoint point;
    for (std::size_t d = 0; d < parameters_.size(); ++d) point.push_back(halton(spread_, kBases.at(d)));
    std::vector<double> values = values_at(point);
    if (!tried(values)) return values;
  }
  double slowest = 0;
  for (const Trial& trial : trials_) {
    if (std::isfinite(trial.median())) slowest = std::max(slowest, trial.median());
  }
  std::vector<CubePoint> points;
  std::vector<double> seconds;
  for (const Trial& trial : trials_) {
    if (trial.values.empty()) continue;
    points.push_back(point_of(trial.values));
    seconds.push_back(std::min(trial.median(), slowest));
  }
  // Little noise: with a dozen points a likely larger one smooths narrow valleys away.
  const GaussianProcess process = process_of(points, seconds, {.noises = {1e-4, 1e-3}});
  double best = trials_[0].values.empty() ? process.standardised(trials_[0].median())
                                          : std::numeric_limits<double>::infinity();
  for (const CubePoint& point : points) {
    const Eigen::Map<const Eigen::VectorXd> column(point.data(), static_cast<Eigen::Index>(point.size()));
    best = std::min(best, process.predict(column).mean);
  }
  RandomPoints random(splitmix64(seed_ + trials_.size()));
  const CubePoint point = most_promising(process, best, kXi, static_cast<int>(parameters_.size()), random,
                                         [&](const CubePoint& each) { return tried(values_at(each)); });
  return point.empty() ? std::vector<double>() : values_at(point);
}

std::vector<double> Tuner::values_at(const std::vector<double>& point) const {
  std::vector<double> values;
  for (std::size_t d = 0; d < point.size(); ++d) values.push_back(value_at(parameters_[d], point[d]));
  return values;
}

std::vector<double> Tuner::point_of(const std::vector<double>& values) const {
  std::vector<double> point;
  for (std::size_t d = 0; d < values.size(); ++d) point.push_back(coordinate_of(parameters_[d], values[d]));
  return point;
}

bool Tuner::tried(const std::vector<double>& values) const {
  return std::ranges::find(trials_, values, &Trial::values) != trials_.end();
}

}  // namespace gradweave
