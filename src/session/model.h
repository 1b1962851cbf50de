// A module's layers and parameters, as a session trains them.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <vector>

#include "gradweave/workload.h"
#include "runtime/host.h"

namespace gradweave {

struct SessionModel {
  std::vector<runtime::NamedParameter> parameters;
  std::vector<runtime::NamedParameter> frozen;  // those that required no gradient
  Workload workload;                            // without times
};

// Returns the layers of `module`, in the order of registration. Errors: InvalidInput if no parameter requires a gradient, or
// for one whose element type has no gradients.
SessionModel described(const torch::nn::Module& module);

// Throws InvalidInput if a parameter that was frozen requires a gradient now.
void check_frozen(const SessionModel& model);

// Throws InvalidInput unless the optimizer steps exactly the model's parameters, once in each step.
void check_optimizer(torch::optim::Optimizer& optimizer, const SessionModel& model);

}  // namespace gradweave
