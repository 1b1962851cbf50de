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
  Workload workload;  // without times
};

// Returns the layers of `module`, in the order of registration. Errors: InvalidInput if no parameter requires a gradient, or
// for one whose element type has no gradients.
SessionModel described(const torch::nn::Module& module);

// Throws InvalidInput unless the optimizer steps exactly the model's parameters, once in each step.
void check_optimizer(torch::optim::Optimizer& optimizer, const SessionModel& model);

}  // namespace gradweave
