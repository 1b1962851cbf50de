// Bayesian optimisation: few trials of a costly function.
//
// J. Snoek, H. Larochelle, R. P. Adams, "Practical Bayesian Optimization of Machine Learning Algorithms",
// NIPS 2012. A Gaussian process models the function; the next trial is where the expected improvement is
// largest,
//   EI(x) = g Phi(g/s) + s phi(g/s),  g = best - mean(x) - xi,  s = deviation(x),
// xi > 0 favouring exploration; ByteScheduler and DeAR use xi = 0.1.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "solve/gaussian_process.h"

namespace gradweave {

// A point of the unit cube. Coordinates are multiples of 2^-10, so that a result does not hang on rounding.
using CubePoint = std::vector<double>;

// Random points of the unit cube, the same on every machine.
class RandomPoints {
 public:
  explicit RandomPoints(std::uint64_t seed) : state_(seed) {}
  CubePoint next(int dimensions);

 private:
  std::uint64_t state_;
};

// Returns the process of values at points, one value each.
GaussianProcess process_of(const std::vector<CubePoint>& points, const std::vector<double>& values,
                           const GaussianProcessGrid& grid = {});

// Returns EI; `best`, `xi` and the prediction are standardised values.
double expected_improvement(const GaussianProcess::Prediction& prediction, double best, double xi);

// Returns the point whose expected improvement over `best`, a standardised value, is the largest among 256 random
// ones; those that are `known` don't count. Empty: all are known.
CubePoint most_promising(const GaussianProcess& process, double best, double xi, int dimensions,
                         RandomPoints& random, const std::function<bool(const CubePoint&)>& known);

struct BayesianOptions {
  int trials = 24;  // evaluations of the function, the first ones included
  double xi = 0.1;  // in standard deviations of the values seen
  std::uint64_t seed = 0;
  std::vector<CubePoint> first;                               // tried first, in this order
  double stop_at = -std::numeric_limits<double>::infinity();  // no value can be below: stop once one is there
};

struct BayesianResult {
  CubePoint point;  // the best of the trials, the earliest if several are
  double value = 0;
  std::vector<double> values;  // of all trials, in order
};

// Returns the smallest value found of `function` over the unit cube of `dimensions` dimensions.
// Deterministic.
BayesianResult minimise(const std::function<double(const CubePoint&)>& function, int dimensions,
                        const BayesianOptions& options);

// Returns the integer at `coordinate` of the logarithmic scale from `low` (0) to `high` (1), 0 < low <= high,
// and back.
std::int64_t from_log_scale(double coordinate, std::int64_t low, std::int64_t high);
double to_log_scale(std::int64_t value, std::int64_t low, std::int64_t high);

}  // namespace gradweave
