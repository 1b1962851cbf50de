#include "solve/gaussian_process.h"

#include <cmath>
#include <limits>

namespace gradweave {
namespace {

double matern(double distance, double length_scale) {
  const double r = std::sqrt(5.0) * distance / length_scale;
  return (1 + r + r * r / 3) * std::exp(-r);
}

Eigen::MatrixXd covariance(const Eigen::MatrixXd& points, double length_scale, double noise) {
  const Eigen::Index n = points.cols();
  Eigen::MatrixXd k(n, n);
  for (Eigen::Index i = 0; i < n; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) {
      k(i, j) = k(j, i) = matern((points.col(i) - points.col(j)).norm(), length_scale);
    }
    k(i, i) += noise;
  }
  return k;
}

}  // namespace

GaussianProcess::GaussianProcess(Eigen::MatrixXd points, const Eigen::VectorXd& values,
                                 const GaussianProcessGrid& grid)
    : points_(std::move(points)) {
  mean_ = values.mean();
  const double variance = (values.array() - mean_).square().mean();
  deviation_ = variance > 0 ? std::sqrt(variance) : 1;
  const Eigen::VectorXd y = (values.array() - mean_) / deviation_;
  double best = -std::numeric_limits<double>::infinity();
  for (const double noise : grid.noises) {
    for (const double length_scale : grid.length_scales) {
      const Eigen::LLT<Eigen::MatrixXd> factor(covariance(points_, length_scale, noise));
      const Eigen::VectorXd weights = factor.solve(y);
      const double likelihood = -0.5 * y.dot(weights) - factor.matrixLLT().diagonal().array().log().sum();
      if (likelihood > best) {
        best = likelihood;
        length_scale_ = length_scale;
        noise_ = noise;
        factor_ = factor;
        weights_ = weights;
      }
    }
  }
}

GaussianProcess::Prediction GaussianProcess::predict(const Eigen::VectorXd& point) const {
  Eigen::VectorXd k(points_.cols());
  for (Eigen::Index i = 0; i < k.size(); ++i) k(i) = matern((points_.col(i) - point).norm(), length_scale_);
  const double mean = k.dot(weights_);
  const double variance = 1 - factor_.matrixL().solve(k).squaredNorm();
  return {mean, std::sqrt(std::max(variance, 0.0))};
}

}  // namespace gradweave
