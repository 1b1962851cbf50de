// Gaussian process regression with a Matern 5/2 kernel, as Bayesian optimisation uses it.
//
// C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006,
// Algorithm 2.1; kernel:
//   k(r) = (1 + sqrt5 r/s + 5 r^2/(3 s^2)) exp(-sqrt5 r/s)      r: distance, s: length scale       (4.17)
//   mean(x) = k(x)' (K + n I)^-1 y,  variance(x) = 1 - |L^-1 k(x)|^2,  L L' = K + n I       (2.25, 2.26)
//   log p(y) = -y' (K + n I)^-1 y / 2 - sum log L_ii - N log(2 pi) / 2                            (2.30)
#pragma once

#include <Eigen/Dense>
#include <vector>

namespace gradweave {

// What the likelihood chooses from: s, and n, a variance relative to that of the values.
struct GaussianProcessGrid {
  std::vector<double> length_scales = {0.05, 0.1, 0.2, 0.4, 0.8, 1.6};
  std::vector<double> noises = {
      1e-6};  // of exact values: keeps K positive definite where points nearly coincide
};

class GaussianProcess {
 public:
  // `points`: one per column, in the unit cube; `values`: one per point, standardised inside to mean 0 and
  // variance 1. Length scale and noise are those of the grid that make the values most likely (2.30). At
  // least one point. O(points^3) for each pair of the grid.
  GaussianProcess(Eigen::MatrixXd points, const Eigen::VectorXd& values,
                  const GaussianProcessGrid& grid = {});

  struct Prediction {
    double mean;
    double deviation;
  };
  // Returns the prediction at `point` of the value without noise, standardised. O(points^2).
  Prediction predict(const Eigen::VectorXd& point) const;

  // Returns `value` in the standardised scale.
  double standardised(double value) const { return (value - mean_) / deviation_; }
  double length_scale() const { return length_scale_; }
  double noise() const { return noise_; }

 private:
  Eigen::MatrixXd points_;
  Eigen::LLT<Eigen::MatrixXd> factor_;
  Eigen::VectorXd weights_;  // (K + n I)^-1 y
  double mean_ = 0, deviation_ = 1, length_scale_ = 1, noise_ = 0;
};

}  // namespace gradweave
