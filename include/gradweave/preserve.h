// Whether training by a plan goes as plain data parallelism does: DeFT's Preserver, and what its paper leaves
// out, the delay of gradients. Both look at the optimizer steps that the plan makes, whoever made it.
//
// Left out of account: what a compressor changes (its error feedback is bounded elsewhere), and differences
// between workers, which local steps and late corrections add: the mean of the workers moves as written here.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"

namespace gradweave {

class SchemeOptions;  // options.h

// Part of a step: the gradient of an iteration, times a weight.
struct UsedGradient {
  std::int32_t iteration = 0;  // relative to the last forward before the step: 0 or negative
  double weight = 1;
  friend auto operator<=>(const UsedGradient&, const UsedGradient&) = default;
};

// One optimizer step of a block.
struct UpdateStep {
  // The iteration of the period whose forward of the block's layer is the last before it.
  std::int32_t after = 0;
  std::vector<UsedGradient> gradients;  // oldest first
  friend auto operator<=>(const UpdateStep&, const UpdateStep&) = default;
};

// The steps of some blocks in a period, in the order in which they are made.
struct Updates {
  std::int32_t period = 1;  // iterations
  std::vector<UpdateStep> steps;
  double share = 1;  // of all elements
};

// Returns what plain data parallelism does: in each iteration a step by its own gradient.
Updates plain_updates();

// Returns how many forwards before its step the oldest gradient of them was computed.
std::int32_t oldest_gradient(const Updates& updates);

// Returns what the period of a plan does, one entry for all blocks with the same steps, the largest share first.
// Merged gradients weigh 1 (`merge: sum`) or 1 / k; of a residual, a gradient that was dropped m iterations before
// the one that takes it along weighs cap^m.
// The caller owes a valid plan. Errors: InvalidInput if it does not fit the workload. O(blocks x period).
std::vector<Updates> updates_of(const Plan& plan, const Workload& workload);

// Returns the names of the tensors whose steps all are late: none uses a gradient of the last forward before it.
// Errors and complexity: those of updates_of().
std::vector<std::string> late_tensors(const Plan& plan, const Workload& workload);

// The loss as a Gaussian random walk with rebound at its lowest value (P. Yin et al., KDD 2017; DeFT, section
// IV.C), as it stands now.
struct Walk {
  double loss = 0;             // s
  double lowest = 0;           // S*, at most the loss
  double learning_rate = 0;    // eta
  double gradient_square = 0;  // mu = |grad|^2
  double noise_square = 0;     // sigma^2 = grad^T Sigma grad; Sigma: the covariance of one sample's gradient
  double batch = 1;            // B, samples of an iteration over all workers
};

// Returns the expected loss after one step by these gradients. DeFT, Eq. 1, corrected: with the total weight w and
// the total of squares q,
//   m = s - S* - w eta mu,  tau = eta sigma sqrt(q / B),  a = m / tau,  Phi the standard normal distribution
//   E = S* + m (2 Phi(a) - 1) + tau sqrt(2 / pi) exp(-a^2 / 2)
// A mean of k gradients has w = 1 and q = 1/k, the batch kB of the paper; a sum w = q = k.
double expected_loss(const Walk& walk, std::span<const UsedGradient> gradients);

// Returns the expected loss after `periods` periods, step by step, each from the expectation of the one before.
double expected_loss(const Walk& walk, const Updates& updates, std::int32_t periods = 1);

// Returns expected_loss() of plain data parallelism over that of the updates, both after `periods` periods: 1 where
// they are the same, below it where the plan gets less far. DeFT, Table V (0.1922 / 0.1935).
double loss_ratio(const Walk& walk, const Updates& updates, std::int32_t periods = 1);

// What an optimizer makes of a gradient g, as torch's SGD: buffer <- momentum buffer + (1 - dampening) g, and the
// parameter goes by -learning_rate times the buffer, or (g + momentum buffer) with Nesterov's. Adam with settled
// second moments is momentum = dampening = beta1 on the curvature divided by their square root.
struct StepRule {
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};

// Returns by how much training on a quadratic grows in an iteration, in the long run: below 1 it converges, above
// it diverges. `step` is the learning rate times the quadratic's curvature. For one step in each iteration by a
// gradient d updates old this is the largest root's modulus of z^d (z - 1)(z - b) + step z; for all others the
// spectral radius of what a period does to parameter, buffer and the parameters that gradients still on their way
// were taken at. O(period x n^3), n = 3 + the longest delay.
double growth(const Updates& updates, const StepRule& rule, double step);

// Returns the limit below which every step converges: 2 (1 + b) for plain data parallelism, 1 - b where each
// gradient comes one update late. To 1e-6 of itself.
double largest_stable_step(const Updates& updates, const StepRule& rule);

// What is known of a training run: each estimate lies between two ends, as sure as whoever measured wants to be.
struct Range {
  double low = 0, high = 0;
};

struct Measurements {
  Range loss, gradient_square, noise_square;  // as in Walk
  double lowest = 0, learning_rate = 0, batch = 1;
  StepRule rule;
  Range curvature;  // the largest of the loss; Adam's: after division by its second moments' root
};

// Errors: InvalidInput for measurements that can't be: a range upside down, a loss below the lowest, anything negative
// or not finite, a momentum of 1 or more.
void check(const Measurements& measurements);

struct Tolerance {
  double loss = 0.01;           // DeFT's epsilon: how far the ratio of losses may be from 1
  double step = 0.8;            // how much of the largest stable step may be used
  std::int32_t iterations = 0;  // over which losses are compared; 0: a period, as DeFT does
};

// What a plan does to some blocks, by the bad ends of the ranges.
struct BlockJudgement {
  Updates updates;
  double ratio = 1;   // of losses: the farthest from 1 over the ends
  double limit = 0;   // largest_stable_step()
  double growth = 0;  // growth() with the highest curvature
  bool ratio_kept = true, stable = true;
};

struct Judgement {
  std::vector<BlockJudgement> blocks;  // by share
  double step = 0;                     // learning rate times the highest curvature
  double plain_limit = 0;              // that of plain data parallelism
  bool preserves() const;              // every block keeps the ratio and is stable
};

// Returns whether training by the plan keeps up with plain data parallelism. A plan that steps as that does is
// always let through: what is unstable there is not the plan's doing.
// The caller owes a valid plan. Errors: InvalidInput if it does not fit the workload; those of check().
Judgement judge(const Plan& plan, const Workload& workload, const Measurements& measurements,
                const Tolerance& tolerance = {});

// A plan that keeps the accuracy, and how it was found.
struct PreservingPlan {
  Plan plan;
  Judgement judgement;         // of it
  double capacity = 1;         // it was made for compute that takes so many times as long
  std::int32_t attempts = 0;   // plans of the scheme that were judged, or infeasible
  bool exact_instead = false;  // none of them keeps the accuracy: this is the best exact one
};

// Returns scheme `scheme`'s plan, made with the least capacity of eleven at which it keeps the accuracy; else the best
// exact plan (DeFT, section IV.C, which leaves open how capacities grow). With capacity c the scheme plans for compute
// that takes c times as long: it finds room for more communication, updates more often and from newer gradients, and
// some of that room is exposed. c grows geometrically, so that every step costs the same share, from 1 to the coverage
// rate, where an iteration has room for all of its communication: more room changes nothing.
// Infeasible if the scheme is at c = 1, or no exact plan serves. Errors: those of make_plan() and judge().
std::variant<PreservingPlan, Infeasible> make_preserving_plan(const Workload& workload,
                                                              const Cluster& cluster,
                                                              const SchemeOptions& options,
                                                              const Measurements& measurements,
                                                              const Tolerance& tolerance = {});

}  // namespace gradweave
