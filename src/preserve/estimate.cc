#include "gradweave/estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/statistics.h"
#include "base/text.h"
#include "gradweave/effects.h"

namespace gradweave {
namespace {

constexpr double kErrorRate = 0.001, kDissimilar = 1.5;
constexpr double kTiny = std::numeric_limits<double>::min();
constexpr double kUnseen =
    8;  // how much larger the largest curvature may be than what was seen along the steps

constexpr std::size_t kLast = 3;  // samples that count alone, too

// Not below 0: the quantities can't be.
Range around(std::span<const double> values) {
  const Sample sample = sample_of(values);
  const double half = sample.size < 2 ? 0 : sample.uncertainty();
  return {std::max(0.0, sample.mean - half), std::max(0.0, sample.mean + half)};
}

// Whether the mean is above 0, at a one-sided error rate.
bool is_positive(std::span<const double> values) {
  const Sample sample = sample_of(values);
  if (sample.size < 2 || sample.mean <= 0) return false;
  const double t = sample.mean / std::sqrt(sample.variance / static_cast<double>(sample.size));
  return student_tail(t, static_cast<int>(sample.size) - 1) / 2 < kErrorRate;
}

// What of s.(g(t) - g(t-1)) is curvature.
double curvature_in(const GradientSums& sums, int workers) {
  return sums.change - sums.noise_in_change / (workers - 1);
}

}  // namespace

// A ratio of sums: where the noise has few directions, both lines of one iteration's ratio vary together, and the mean of
// ratios is too low. Its error is that of the mean residual, to first order.
Range step_seen_in(std::span<const GradientSums> sums, int workers) {
  double curvature = 0, step = 0;
  std::vector<double> residuals;
  for (const GradientSums& each : sums) {
    if (each.step > 0) curvature += curvature_in(each, workers), step += each.step;
  }
  if (step == 0) return {};
  const double ratio = curvature / step;
  for (const GradientSums& each : sums) {
    if (each.step > 0) residuals.push_back(curvature_in(each, workers) - ratio * each.step);
  }
  const double half = residuals.size() < 2
                          ? 0
                          : sample_of(residuals).uncertainty() * static_cast<double>(residuals.size()) / step;
  return {std::max(0.0, ratio - half), std::max(0.0, ratio) + half};
}

Range step_seen_again(std::span<const SeenIterations> samples, int workers) {
  const double now = samples.back().learning_rate;
  std::vector<GradientSums> all;
  std::size_t earlier = 0;  // sums of samples before the last ones
  for (std::size_t n = 0; n < samples.size(); ++n) {
    if (n + kLast == samples.size()) earlier = all.size();
    const double then = samples[n].learning_rate;
    for (GradientSums each : samples[n].sums) {
      if (each.step <= 0) continue;
      if (now > 0 && then > 0) each.step *= then / now;  // the learning rate is in its divisor
      all.push_back(each);
    }
  }
  const auto last = std::span<const GradientSums>(all).subspan(earlier);
  std::vector<double> curvature;
  for (const GradientSums& each : last) curvature.push_back(curvature_in(each, workers));
  const Range of_all = step_seen_in(all, workers);
  if (!is_positive(curvature)) return of_all;
  const Range of_last = step_seen_in(last, workers);
  return of_last.high > of_all.high ? of_last : of_all;
}

GradientEstimates estimate(std::span<const GradientSums> sums, int workers) {
  const double w = workers;
  std::vector<double> squares, noise, logarithms;
  double between = 0, within = 0, before = 0;
  for (std::size_t n = 0; n < sums.size(); ++n) {
    const GradientSums& each = sums[n];
    // Both unbiased for the trace if all workers draw from the same data; a change has the noise of two iterations.
    const double here = (each.own - each.mean) * w / (w - 1);
    const double changing = (each.own_change - each.mean_change) * w / (w - 1) / 2;
    noise.push_back(changing);
    squares.push_back((w * each.mean - each.own) / (w - 1));
    if (n > 0) {
      const double both = (before + here) / 2;
      between += both;
      within += changing;
      // Gradients may grow tenfold meanwhile: of differences the last ones alone would count.
      logarithms.push_back(std::log(std::max(both, kTiny) / std::max(changing, kTiny)));
    }
    before = here;
  }
  GradientEstimates found{
      .gradient_square = around(squares), .noise = around(noise), .step = step_seen_in(sums, workers)};
  if (within > 0) found.dissimilarity = between / within;
  found.workers_differ = found.dissimilarity > kDissimilar && is_positive(logarithms);
  return found;
}

double progress(const Plan& plan, const Workload& workload, const GradientEstimates& estimates, int workers) {
  constexpr double kLeast = 0.01;
  const std::vector<Updates> updates = updates_of(plan, workload);
  const auto lowered = [](const std::vector<UpdateStep>& steps, double step, double noise) {
    double sum = 0;
    for (const UpdateStep& each : steps) {
      double w = 0, q = 0;
      for (const UsedGradient& used : each.gradients) w += used.weight, q += used.weight * used.weight;
      sum += w - step * (w * w + q * noise) / 2;
    }
    return sum;
  };
  const Range noise{
      estimates.gradient_square.high > 0 ? estimates.noise.low / (workers * estimates.gradient_square.high)
                                         : 0,
      estimates.gradient_square.low > 0 ? estimates.noise.high / (workers * estimates.gradient_square.low)
                                        : 0};
  double least = 1;
  for (const double n : {noise.low, noise.high}) {
    for (const double s : {estimates.step.low, estimates.step.high}) {
      const double plain = lowered(plain_updates().steps, s, n);
      if (plain <= 0) continue;
      double sum = 0;
      for (const Updates& each : updates) sum += each.share * lowered(each.steps, s, n) / each.period;
      least = std::min(least, sum / plain);
    }
  }
  return std::max(least, kLeast);
}

std::string objection(const Plan& plan, const Workload& workload, const GradientEstimates& estimates,
                      const std::optional<StepRule>& rule) {
  const std::vector<Effect> effects = effects_of(plan);
  const auto has = [&](Effect effect) { return std::ranges::find(effects, effect) != effects.end(); };
  if ((has(Effect::kLocal) || has(Effect::kCorrected)) && estimates.workers_differ) {
    return "the workers learn from different data: their gradients differ " +
           number_text(estimates.dissimilarity, 2) +
           " times as much as batches of the same data would, and the plan lets workers step on their own; "
           "shuffle the "
           "data over all workers, or use an exact plan";
  }
  if (!has(Effect::kDelayed)) return "";
  if (!rule || estimates.step.high == 0) {
    return "the plan delays gradients, and it is not known whether training supports that: it is measured "
           "for torch's SGD with a learning rate above 0; use an exact plan";
  }
  // Only the stability is asked: the loss is not known, so that the walk stands still.
  const Judgement judgement = judge(plan, workload,
                                    {.loss = {1, 1},
                                     .gradient_square = {0, 0},
                                     .noise_square = {0, 0},
                                     .learning_rate = 1,
                                     .rule = *rule,
                                     .curvature = {estimates.step.low, kUnseen * estimates.step.high}});
  const auto unstable = std::ranges::find(judgement.blocks, false, &BlockJudgement::stable);
  if (unstable == judgement.blocks.end()) return "";
  return "the plan delays gradients by up to " + std::to_string(oldest_gradient(unstable->updates)) +
         " iterations, which is stable up to a learning rate times curvature of " +
         number_text(unstable->limit, 2) + "; seen so far: " + number_text(estimates.step.low, 2) + " to " +
         number_text(estimates.step.high, 2) + ", and the largest may be " + number_text(kUnseen, 1) +
         " times that; lower the learning rate or the momentum, " +
         (estimates.step.low == 0 ? "measure more iterations (warm_up=), " : "") + "or use an exact plan";
}

}  // namespace gradweave
