#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "gradweave/error.h"
#include "gradweave/preserve.h"

namespace gradweave {
namespace {

void check(const Range& range, const std::string& what) {
  if (!(range.low >= 0 && range.low <= range.high && std::isfinite(range.high)))
    throw InvalidInput("must be a range of finite numbers, none negative, the lower one first", what,
                       "give [low, high]");
}

void check(double value, double below, const std::string& what) {
  if (!(value >= 0 && value < below))
    throw InvalidInput("is out of range", what,
                       "give a number from 0" + (std::isfinite(below) ? " to below 1" : std::string(" on")));
}

}  // namespace

void check(const Measurements& measured) {
  check(measured.loss, "loss");
  check(measured.gradient_square, "gradient_square");
  check(measured.noise_square, "noise_square");
  check(measured.curvature, "curvature");
  check(measured.learning_rate, INFINITY, "learning_rate");
  if (!std::isfinite(measured.learning_rate * measured.curvature.high))
    throw InvalidInput("times curvature is not finite", "learning_rate",
                       "give a smaller one, or less curvature");
  check(measured.rule.momentum, 1, "momentum");
  check(measured.rule.dampening, 1, "dampening");
  if (!(measured.batch > 0) || !std::isfinite(measured.batch))
    throw InvalidInput("must be above 0", "batch", "give the samples of an iteration over all workers");
  if (!(measured.lowest <= measured.loss.low) || !std::isfinite(measured.lowest))
    throw InvalidInput("is above the loss", "lowest", "give the lowest loss that training could reach");
}

namespace {

// Plain data parallelism gives the same steps in any number of iterations.
bool is_plain(const Updates& updates) {
  const Updates plain = plain_updates();
  return updates.steps.size() == static_cast<std::size_t>(updates.period) &&
         std::ranges::all_of(updates.steps, [&](const UpdateStep& step) {
           return step.gradients == plain.steps.front().gradients;
         });
}

double worst_ratio(const Measurements& measured, const Updates& updates, std::int32_t periods) {
  double worst = 1;
  for (const double loss : {measured.loss.low, measured.loss.high}) {
    for (const double gradient_square : {measured.gradient_square.low, measured.gradient_square.high}) {
      for (const double noise_square : {measured.noise_square.low, measured.noise_square.high}) {
        const double ratio = loss_ratio(
            {loss, measured.lowest, measured.learning_rate, gradient_square, noise_square, measured.batch},
            updates, periods);
        // Where both losses are 0, nothing is lost.
        if (std::isfinite(ratio) && std::abs(ratio - 1) > std::abs(worst - 1)) worst = ratio;
      }
    }
  }
  return worst;
}

}  // namespace

bool Judgement::preserves() const {
  return std::ranges::all_of(blocks,
                             [](const BlockJudgement& block) { return block.ratio_kept && block.stable; });
}

Judgement judge(const Plan& plan, const Workload& workload, const Measurements& measurements,
                const Tolerance& tolerance) {
  check(measurements);
  Judgement judgement{.step = measurements.learning_rate * measurements.curvature.high,
                      .plain_limit = largest_stable_step(plain_updates(), measurements.rule)};
  for (Updates& updates : updates_of(plan, workload)) {
    const std::int32_t periods = std::max(1, (tolerance.iterations + updates.period - 1) / updates.period);
    BlockJudgement block{.updates = std::move(updates)};
    block.growth = growth(block.updates, measurements.rule, judgement.step);
    if (is_plain(block.updates)) {
      block.limit = judgement.plain_limit;
    } else {
      block.ratio = worst_ratio(measurements, block.updates, periods);
      block.limit = largest_stable_step(block.updates, measurements.rule);
      block.ratio_kept = std::abs(block.ratio - 1) <= tolerance.loss;
      block.stable = judgement.step <= tolerance.step * block.limit;
    }
    judgement.blocks.push_back(std::move(block));
  }
  return judgement;
}

}  // namespace gradweave
