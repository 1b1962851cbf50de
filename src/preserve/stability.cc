#include <Eigen/Eigenvalues>
#include <cmath>
#include <limits>

#include "gradweave/preserve.h"

namespace gradweave {
namespace {

using Matrix = Eigen::MatrixXd;

// The state: parameter, buffer, then the parameter at the last forward, at the one before it, ...
constexpr Eigen::Index kParameter = 0, kBuffer = 1, kForwards = 2;

// What a period does to the state: every row is that component afterwards, of the state before.
Matrix of_period(const Updates& updates, const StepRule& rule, double step) {
  const Eigen::Index reach = oldest_gradient(updates);
  Matrix state = Matrix::Identity(kForwards + reach + 1, kForwards + reach + 1);
  auto next = updates.steps.begin();
  for (std::int32_t n = 0; n < updates.period; ++n) {
    for (Eigen::Index ago = reach; ago > 0; --ago)
      state.row(kForwards + ago) = state.row(kForwards + ago - 1).eval();
    state.row(kForwards) = state.row(kParameter).eval();
    for (; next != updates.steps.end() && next->after == n; ++next) {
      Eigen::RowVectorXd gradient = Eigen::RowVectorXd::Zero(state.cols());
      for (const UsedGradient& used : next->gradients)
        gradient += used.weight * step * state.row(kForwards - used.iteration);
      state.row(kBuffer) = rule.momentum * state.row(kBuffer).eval() + (1 - rule.dampening) * gradient;
      if (rule.nesterov) {
        state.row(kParameter) -= gradient + rule.momentum * state.row(kBuffer);
      } else {
        state.row(kParameter) -= state.row(kBuffer);
      }
    }
  }
  return state;
}

}  // namespace

double growth(const Updates& updates, const StepRule& rule, double step) {
  const auto roots = Eigen::EigenSolver<Matrix>(of_period(updates, rule, step), false).eigenvalues();
  return std::pow(roots.cwiseAbs().maxCoeff(), 1.0 / updates.period);
}

double largest_stable_step(const Updates& updates, const StepRule& rule) {
  // The parameter's root leaves 1 for the inside with the step: from a small one on, up to the first that diverges.
  const auto diverges = [&](double step) { return growth(updates, rule, step) > 1; };
  constexpr double kSmallest = 1e-4, kFactor = 1.05, kPrecision = 1e-6;
  if (updates.steps.empty()) return std::numeric_limits<double>::infinity();
  double stable = kSmallest * (1 - rule.momentum), beyond = stable;
  if (diverges(stable)) return 0;
  while (!diverges(beyond)) {
    stable = beyond;
    beyond *= kFactor;
  }
  while (beyond - stable > kPrecision * beyond) {
    const double middle = (stable + beyond) / 2;
    (diverges(middle) ? beyond : stable) = middle;
  }
  return stable;
}

}  // namespace gradweave
