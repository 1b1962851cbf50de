// What a training run shows of its gradients while it is still synchronous, and what the Preserver makes of it: whether a
// plan that changes training may be used.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradweave/plan.h"
#include "gradweave/preserve.h"
#include "gradweave/workload.h"

namespace gradweave {

// Inner products of one iteration t, over all elements. g_i: the gradient of worker i's part of the batch; g: their
// mean; s: the step that the optimizer made before, from t - 1 to t; m: what it multiplied the learning rate with for it,
// element by element (SGD's momentum buffer, or the gradient).
struct GradientSums {
  double own = 0;          // mean over workers of |g_i|^2
  double mean = 0;         // |g|^2
  double own_change = 0;   // mean over workers of |g_i(t) - g_i(t-1)|^2
  double mean_change = 0;  // |g(t) - g(t-1)|^2
  // Over the elements whose m is known:
  double change = 0;  // (g(t) - g(t-1)) . s
  double step = 0;    // -s . m
  // Mean over workers of k (-s/m) . (g_i(t-1) - g(t-1))^2, k being the share of m that g(t-1) is: what the noise in s adds
  // to `change`, times the number of workers less one.
  double noise_in_change = 0;
};

// Each with its uncertainty: 95 % confidence intervals by Student's t over the iterations.
struct GradientEstimates {
  // |grad|^2, and the trace of the covariance of the gradient of one worker's part of a batch: unbiased estimators from
  // norms at two batch sizes (McCandlish et al. 2018, appendix A.1).
  Range gradient_square, noise;
  // |g_i - g|^2 over what sampling noise alone gives, which is what changes from batch to batch: 1 where all workers draw
  // from the same data. A difference that stays cancels in g_i(t) - g_i(t-1) less its mean.
  double dissimilarity = 1;
  // It is above 1.5, and the mean of its logarithm above 0 at an error rate of 0.001 (one-sided).
  bool workers_differ = false;
  // Learning rate times curvature along the steps: s.(g(t) - g(t-1)) / -s.m, which for SGD is the learning rate times
  // sHs / ss, without what the noise that s and g(t-1) share adds to it. Both ends 0 where steps are not known.
  Range step;
};

// Returns what sums of successive iterations of `workers` >= 2 workers say. The caller owes at least two.
GradientEstimates estimate(std::span<const GradientSums> sums, int workers);

// Returns the quantity `step` of GradientEstimates alone.
Range step_seen_in(std::span<const GradientSums> sums, int workers);

// Successive iterations, and the learning rate in them.
struct SeenIterations {
  std::vector<GradientSums> sums;
  double learning_rate = 0;
};

// Returns the quantity `step` at the last learning rate, of samples of a run, the oldest first: of all of them; or of
// the last three, where these show on their own that it is above 0 (at an error rate of 0.001, one-sided) and allow more.
// The caller owes one sample.
Range step_seen_again(std::span<const SeenIterations> samples, int workers);

// Returns how far an iteration of the plan gets beside one of plain training on a quadratic, at the learning rate as it is.
// A step of the learning rate eta by gradients of total weight w and total of squares q lowers the loss by
//   eta |grad|^2 (w - s (w^2 + q N) / 2)
// in expectation, s being eta times the curvature, N the noise of the whole batch's gradient over |grad|^2; plain training
// is w = q = 1 in each iteration (McCandlish et al. 2018, section 2.2). A mean of k gradients gets 1 / k as far where there
// is no noise. Of all ends of s and N the worst counts, where plain training gets anywhere; at most 1, at least 0.01.
// Momentum is left out of account: it multiplies both. Errors: those of updates_of().
double progress(const Plan& plan, const Workload& workload, const GradientEstimates& estimates, int workers);

// Returns why a plan should not be used, with the remedy; "" if nothing speaks against it. A plan that lets workers step
// on their own, or corrects late, needs workers that draw from the same data. A plan that delays gradients needs a learning
// rate times curvature below 0.8 of its limit, the largest curvature being taken as eight times the upper end of what was
// seen along the steps (docs/preserver.md); `rule`: what the optimizer does,
// nothing if that is not known, which speaks against every delay. Errors: those of judge().
std::string objection(const Plan& plan, const Workload& workload, const GradientEstimates& estimates,
                      const std::optional<StepRule>& rule);

}  // namespace gradweave
