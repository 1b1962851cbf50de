#include "session/optimizer.h"

#include <torch/optim/sgd.h>

#include <set>
#include <utility>

namespace gradweave {
namespace {

const torch::optim::SGDOptions& sgd_options(const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const torch::optim::SGDOptions&>(group.options());
}

// What the step multiplied the learning rate with, and how much of it the gradient was.
std::pair<at::Tensor, double> moment_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                                        const torch::optim::SGDOptions& options) {
  const at::Tensor& gradient = parameter.grad();
  const auto known = optimizer.state().find(parameter.unsafeGetTensorImpl());
  const at::Tensor buffer =
      known == optimizer.state().end()
          ? at::Tensor()
          : static_cast<const torch::optim::SGDParamState&>(*known->second).momentum_buffer();
  if (!buffer.defined()) return {gradient.clone(), 1.0};
  if (options.nesterov()) return {gradient + options.momentum() * buffer, 1.0 + options.momentum()};
  return {buffer.clone(), 1.0 - options.dampening()};
}

// 0 where the options have none.
double rate_of(const torch::optim::OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    return 0;
  }
}

}  // namespace

void SessionOptimizer::step_subset(std::int32_t subset, const std::vector<std::int32_t>& places) {
  Groups& groups = optimizer_.param_groups();
  auto [entry, made] = narrowed_.try_emplace(subset);
  Groups& mine = entry->second;
  if (made) {
    std::set<const void*> wanted;
    for (const std::int32_t p : places)
      wanted.insert(parameters_[static_cast<std::size_t>(p)].tensor.unsafeGetTensorImpl());
    for (const auto& group : groups) {
      std::erase_if(mine.emplace_back(group).params(),
                    [&](const at::Tensor& tensor) { return !wanted.contains(tensor.unsafeGetTensorImpl()); });
    }
  }
  if (frozen_.empty()) freeze_options();
  for (std::size_t g = 0; g < mine.size(); ++g) mine[g].set_options(frozen_[g]->clone());
  // The vectors, so that what the caller refers to in his groups stays where it is.
  std::swap(groups, mine);
  try {
    optimizer_.step();
  } catch (...) {
    std::swap(groups, mine);
    throw;
  }
  std::swap(groups, mine);
}

void SessionOptimizer::freeze_options() {
  frozen_.clear();
  for (const auto& group : optimizer_.param_groups()) frozen_.push_back(group.options().clone());
}

std::optional<StepRule> SessionOptimizer::rule() const {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer_) == nullptr) return std::nullopt;
  StepRule rule;
  for (const auto& group : optimizer_.param_groups()) {
    const torch::optim::SGDOptions& options = sgd_options(group);
    if (options.momentum() >= rule.momentum)
      rule = {options.momentum(), options.dampening(), options.nesterov()};
  }
  return rule;
}

std::vector<double> SessionOptimizer::learning_rates() const {
  std::map<const void*, double> rate;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& tensor : group.params())
      rate[tensor.unsafeGetTensorImpl()] = rate_of(group.options());
  }
  std::vector<double> rates;
  for (const runtime::NamedParameter& each : parameters_)
    rates.push_back(rate[each.tensor.unsafeGetTensorImpl()]);
  return rates;
}

runtime::OptimizerMoments SessionOptimizer::moments() const {
  runtime::OptimizerMoments found;
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer_) == nullptr) return found;
  std::map<const void*, at::Tensor> moments;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      if (!tensor.grad().defined()) continue;
      std::tie(moments[tensor.unsafeGetTensorImpl()], found.share) =
          moment_of(optimizer_, tensor, sgd_options(group));
    }
  }
  for (const runtime::NamedParameter& each : parameters_)
    found.moments.push_back(moments[each.tensor.unsafeGetTensorImpl()]);
  return found;
}

}  // namespace gradweave
