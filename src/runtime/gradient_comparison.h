// Gradients of successive iterations compared, for the Preserver (src/control/gradient_watch.h).
#pragma once

#include <ATen/core/TensorBody.h>

#include <string>
#include <vector>

#include "gradweave/estimate.h"
#include "runtime/engine.h"

namespace gradweave::runtime {

// What an optimizer multiplied its learning rates with in its last step, by parameter; undefined for those that it left out.
struct OptimizerMoments {
  std::vector<at::Tensor> moments;  // empty: not known
  double share = 0;                 // that the last gradient is of it
};

// Of one rank. On the training thread.
class GradientComparison {
 public:
  // `engine` must outlive it.
  explicit GradientComparison(Engine& engine) : engine_(engine), parameters_(engine.parameters()) {}

  // Compares the gradients of the coming iterations: of all parameters, beside their means over the ranks, which the plan in
  // force owes in `.grad`; or, if `late` isn't empty, of these alone with those of the iteration before.
  void compare(const std::vector<std::string>& late);
  // Ends that. Returns the sums of each iteration, but for the first.
  std::vector<GradientSums> compared();
  bool comparing() const { return comparing_; }
  // Whether only late tensors are compared: then gradients need not be reduced when a backward ends.
  bool late() const { return !late_.empty(); }

  // A communicated backward has ended. `rates`: by parameter, the learning rate.
  void backward_ended(const std::vector<double>& rates);
  // The optimizer has stepped, where all are compared.
  bool wants_moments() const { return comparing_ && late_.empty() && !before_.empty(); }
  void iteration_ended(OptimizerMoments moments);

 private:
  using Tensors = std::vector<at::Tensor>;
  void forget();
  void compare_all(Tensors own);
  void compare_late(const Tensors& own, const std::vector<double>& rates);

  Engine& engine_;
  const std::vector<NamedParameter>& parameters_;
  bool comparing_ = false;
  std::vector<std::size_t> late_;
  std::vector<GradientSums> sums_;
  // Of the iteration before: gradients, their means, parameters before the step, the step.
  Tensors own_, mean_, before_, step_;
  OptimizerMoments moments_;
};

}  // namespace gradweave::runtime
