#include <cmath>
#include <numbers>
#include <span>

#include "gradweave/preserve.h"

namespace gradweave {

double expected_loss(const Walk& walk, std::span<const UsedGradient> gradients) {
  double weights = 0, squares = 0;
  for (const UsedGradient& used : gradients) {
    weights += used.weight;
    squares += used.weight * used.weight;
  }
  const double m = walk.loss - walk.lowest - weights * walk.learning_rate * walk.gradient_square;
  const double tau = walk.learning_rate * std::sqrt(walk.noise_square * squares / walk.batch);
  if (tau == 0) return walk.lowest + std::abs(m);
  const double a = m / tau;
  // 2 Phi(a) - 1 = erf(a / sqrt 2)
  return walk.lowest + m * std::erf(a / std::numbers::sqrt2) +
         tau * std::sqrt(2 / std::numbers::pi) * std::exp(-a * a / 2);
}

double expected_loss(const Walk& walk, const Updates& updates, std::int32_t periods) {
  Walk now = walk;
  for (std::int32_t n = 0; n < periods; ++n)
    for (const UpdateStep& step : updates.steps) now.loss = expected_loss(now, step.gradients);
  return now.loss;
}

double loss_ratio(const Walk& walk, const Updates& updates, std::int32_t periods) {
  return expected_loss(walk, plain_updates(), updates.period * periods) /
         expected_loss(walk, updates, periods);
}

}  // namespace gradweave
