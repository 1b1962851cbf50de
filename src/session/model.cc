#include "session/model.h"

#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "gradweave/error.h"
#include "runtime/passes.h"

namespace gradweave {
namespace {

// Adds the layers of `module`, called `name`, and of what it holds.
void add_layers(const torch::nn::Module& module, const std::string& name, SessionModel& model,
                std::set<const void*>& seen) {
  Layer layer{.name = name.empty() ? module.name() : name};
  const std::string prefix = name.empty() ? "" : name + ".";
  for (const auto& own : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& tensor = own.value();
    if (tensor.numel() == 0) continue;
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;  // shared: of the first layer
    if (!tensor.requires_grad()) {
      model.frozen.push_back({prefix + own.key(), tensor});
      continue;
    }
    const auto dtype = std::ranges::find(runtime::kFloats, tensor.scalar_type(), runtime::scalar_type_of);
    if (dtype == runtime::kFloats.end()) {
      throw InvalidInput("its element type has no gradients here", "parameter '" + prefix + own.key() + "'",
                         "use floats");
    }
    const std::vector<std::int64_t> shape =
        tensor.dim() == 0 ? std::vector<std::int64_t>{1} : tensor.sizes().vec();
    layer.tensors.push_back(
        {.name = prefix + own.key(), .numel = tensor.numel(), .dtype = *dtype, .shape = shape});
    model.parameters.push_back({prefix + own.key(), tensor});
  }
  if (!layer.tensors.empty()) model.workload.layers.push_back(std::move(layer));
  for (const auto& child : module.named_children())
    add_layers(*child.value(), prefix + child.key(), model, seen);
}

}  // namespace

SessionModel described(const torch::nn::Module& module) {
  SessionModel model;
  model.workload.name = module.name();
  std::set<const void*> seen;
  add_layers(module, "", model, seen);
  if (model.parameters.empty()) {
    throw InvalidInput("no parameter requires a gradient", "model",
                       "register its layers before the session begins");
  }
  return model;
}

void check_frozen(const SessionModel& model) {
  for (const runtime::NamedParameter& parameter : model.frozen) {
    if (!parameter.tensor.requires_grad()) continue;
    throw InvalidInput("it requires a gradient now, and was frozen when the session began",
                       "parameter '" + parameter.name + "'",
                       "call Session::finish() before it is unfrozen, and begin another session after it");
  }
}

void check_optimizer(torch::optim::Optimizer& optimizer, const SessionModel& model) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw InvalidInput("LBFGS evaluates the loss many times in a step", "optimizer", "use another one");
  }
  std::set<const void*> stepped;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) stepped.insert(tensor.unsafeGetTensorImpl());
  }
  for (const runtime::NamedParameter& parameter : model.parameters) {
    if (stepped.erase(parameter.tensor.unsafeGetTensorImpl()) == 0) {
      throw InvalidInput("the optimizer does not have it", "parameter '" + parameter.name + "'",
                         "give the optimizer model.parameters()");
    }
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      if (stepped.contains(tensor.unsafeGetTensorImpl()) && tensor.requires_grad() && tensor.numel() > 0)
        throw InvalidInput("it has parameters that are not the model's", "optimizer",
                           "give each model its own");
    }
  }
}

}  // namespace gradweave
