// How a session steps its optimizer: parts of the model, or all of it.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "gradweave/preserve.h"
#include "runtime/control_group.h"
#include "runtime/gradient_comparison.h"
#include "runtime/host.h"

namespace gradweave {

// Of one of torch's optimizers on these parameters. Both must outlive it.
class SessionOptimizer {
 public:
  SessionOptimizer(torch::optim::Optimizer& optimizer, const std::vector<runtime::NamedParameter>& parameters)
      : optimizer_(optimizer), parameters_(parameters) {}

  // Whether it steps parameter by parameter: a step of some is what a step of all does to them.
  bool steps_one_by_one() const;

  // Whether it keeps something between steps that average_states() doesn't know: it is none of those.
  bool keeps_unknown_state() const { return !optimizer_.state().empty() && !steps_one_by_one(); }

  // A step of all parameters; or of those at these places, which are always the same for a subset until forget().
  void step() { optimizer_.step(); }
  void step_subset(std::int32_t subset, const std::vector<std::int32_t>& places);
  // Steps of subsets use the hyperparameters of now, also those that come later.
  void freeze_options();
  // Subsets have new meanings.
  void forget() { narrowed_.clear(); }
  // Ranks that have stepped the parameters at these places on their own go on alike: what is kept of each becomes the mean over
  // the ranks, counts of steps rounded. A rank that keeps nothing of one counts as zeros. Collective. Errors: RuntimeFailure.
  void average_states(const std::vector<std::int32_t>& places, const runtime::ControlGroup& ranks);

  // Returns what it does, of the group with the most momentum; nothing where it is not torch's SGD.
  std::optional<StepRule> rule() const;
  // By parameter, its learning rate; 0 where its options have none.
  std::vector<double> learning_rates() const;
  // Returns what it multiplied the learning rates with in its last step.
  runtime::OptimizerMoments moments() const;

 private:
  torch::optim::Optimizer& optimizer_;
  const std::vector<runtime::NamedParameter>& parameters_;
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  std::map<std::int32_t, Groups> narrowed_;                              // by subset
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> frozen_;  // by group
};

}  // namespace gradweave
