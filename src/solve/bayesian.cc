#include "solve/bayesian.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/splitmix.h"

namespace gradweave {
namespace {

constexpr double kGrid = 1024;
constexpr int kCandidates = 256;  // random ones for each trial
constexpr int kFirstTrials = 3;   // before the model is asked, spread over the cube

CubePoint on_grid(CubePoint point) {
  for (double& x : point) x = std::round(std::clamp(x, 0.0, 1.0) * kGrid) / kGrid;
  return point;
}

}  // namespace

CubePoint RandomPoints::next(int dimensions) {
  CubePoint point;
  for (int d = 0; d < dimensions; ++d) {
    point.push_back(static_cast<double>(splitmix64(state_) % 1025) / kGrid);
    state_ += kSplitmixStep;
  }
  return point;
}

GaussianProcess process_of(const std::vector<CubePoint>& points, const std::vector<double>& values,
                           const GaussianProcessGrid& grid) {
  const auto dimensions = static_cast<Eigen::Index>(points.front().size());
  Eigen::MatrixXd columns(dimensions, static_cast<Eigen::Index>(points.size()));
  for (std::size_t i = 0; i < points.size(); ++i) {
    columns.col(static_cast<Eigen::Index>(i)) =
        Eigen::Map<const Eigen::VectorXd>(points[i].data(), dimensions);
  }
  return {columns, Eigen::Map<const Eigen::VectorXd>(values.data(), columns.cols()), grid};
}

double expected_improvement(const GaussianProcess::Prediction& prediction, double best, double xi) {
  const double gain = best - prediction.mean - xi;
  if (prediction.deviation <= 0) return std::max(gain, 0.0);
  const double z = gain / prediction.deviation;
  const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * std::numbers::pi);
  return gain * 0.5 * std::erfc(-z / std::numbers::sqrt2) + prediction.deviation * density;
}

CubePoint most_promising(const GaussianProcess& process, double best, double xi, int dimensions,
                         RandomPoints& random, const std::function<bool(const CubePoint&)>& known) {
  CubePoint next;
  double best_improvement = -1;
  for (int i = 0; i < kCandidates; ++i) {
    const CubePoint candidate = random.next(dimensions);
    if (known(candidate)) continue;
    const auto prediction = process.predict(Eigen::Map<const Eigen::VectorXd>(candidate.data(), dimensions));
    // Nine digits, so that the choice does not hang on the last bits of exp() or of Eigen's kernels.
    const double improvement = std::round(expected_improvement(prediction, best, xi) * 1e9);
    if (improvement > best_improvement) {
      best_improvement = improvement;
      next = candidate;
    }
  }
  return next;
}

BayesianResult minimise(const std::function<double(const CubePoint&)>& function, int dimensions,
                        const BayesianOptions& options) {
  RandomPoints random(options.seed);
  BayesianResult result;
  std::vector<CubePoint> points;
  const auto evaluate = [&](const CubePoint& point) {
    const double value = function(point);
    if (points.empty() || value < result.value) {
      result.point = point;
      result.value = value;
    }
    points.push_back(point);
    result.values.push_back(value);
  };
  const auto done = [&] { return !points.empty() && result.value <= options.stop_at; };
  const auto known = [&](const CubePoint& point) { return std::ranges::find(points, point) != points.end(); };

  for (const CubePoint& point : options.first) {
    if (!done()) evaluate(on_grid(point));
  }
  for (int i = 1; i <= kFirstTrials; ++i) {
    const CubePoint point =
        on_grid(CubePoint(static_cast<std::size_t>(dimensions), i / (kFirstTrials + 1.0)));
    if (!known(point) && !done()) evaluate(point);
  }
  while (static_cast<int>(points.size()) < options.trials && !done()) {
    const GaussianProcess process = process_of(points, result.values);
    const CubePoint next =
        most_promising(process, process.standardised(result.value), options.xi, dimensions, random, known);
    if (next.empty()) break;  // every candidate is known: the cube has been searched
    evaluate(next);
  }
  return result;
}

std::int64_t from_log_scale(double coordinate, std::int64_t low, std::int64_t high) {
  const double ratio = static_cast<double>(high) / static_cast<double>(low);
  const double value = static_cast<double>(low) * std::pow(ratio, coordinate);
  // Three significant digits: readable, and the same on every machine.
  const double unit = std::pow(10, std::max(0.0, std::floor(std::log10(value)) - 2));
  return std::clamp(static_cast<std::int64_t>(std::round(value / unit) * unit), low, high);
}

double to_log_scale(std::int64_t value, std::int64_t low, std::int64_t high) {
  if (low == high) return 0;
  return std::log(static_cast<double>(value) / static_cast<double>(low)) /
         std::log(static_cast<double>(high) / static_cast<double>(low));
}

}  // namespace gradweave
