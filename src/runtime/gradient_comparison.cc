#include "runtime/gradient_comparison.h"

#include <algorithm>
#include <utility>

#include "runtime/gradient_sums.h"

namespace gradweave::runtime {

void GradientComparison::forget() {
  sums_.clear();
  own_.clear(), mean_.clear(), before_.clear(), step_.clear();
  moments_ = {};
}

void GradientComparison::compare(const std::vector<std::string>& late) {
  forget();
  late_.clear();
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (std::ranges::find(late, parameters_[p].name) != late.end()) late_.push_back(p);
  }
  comparing_ = true;
  engine_.keep_local_gradients(true);
}

std::vector<GradientSums> GradientComparison::compared() {
  std::vector<GradientSums> sums = std::move(sums_);
  engine_.keep_local_gradients(false);
  comparing_ = false;
  forget();
  return sums;
}

void GradientComparison::backward_ended(const std::vector<double>& rates) {
  Tensors own = engine_.take_local_gradients();
  own.resize(parameters_.size());
  if (late_.empty()) {
    compare_all(std::move(own));
  } else {
    compare_late(own, rates);
  }
}

void GradientComparison::compare_all(Tensors own) {
  Tensors mean;
  before_.clear();
  for (const NamedParameter& each : parameters_) {
    const at::Tensor gradient = each.gradient();
    mean.push_back(gradient.defined() ? gradient.detach().clone() : at::Tensor());
    before_.push_back(each.tensor.detach().clone());
  }
  if (!step_.empty())
    sums_.push_back(gradient_sums(own, own_, mean, mean_, step_, moments_.moments, moments_.share));
  own_ = std::move(own);
  mean_ = std::move(mean);
}

void GradientComparison::iteration_ended(OptimizerMoments moments) {
  step_.clear();
  for (std::size_t p = 0; p < parameters_.size(); ++p)
    step_.push_back(parameters_[p].tensor.detach() - before_[p]);
  moments_ = std::move(moments);
  before_.clear();
}

void GradientComparison::compare_late(const Tensors& own, const std::vector<double>& rates) {
  Tensors gradients, now, step, moment;
  for (const std::size_t p : late_) {
    const at::Tensor& tensor = parameters_[p].tensor;
    gradients.push_back(own[p].defined() ? own[p].as_strided(tensor.sizes(), tensor.strides())
                                         : at::Tensor());
    now.push_back(tensor.detach().clone());
    if (own_.empty()) continue;
    step.push_back(now.back() - before_[now.size() - 1]);
    moment.push_back(rates[p] != 0 ? step.back() / -rates[p] : at::Tensor());
  }
  if (!own_.empty()) sums_.push_back(gradient_sums(gradients, own_, gradients, own_, step, moment, 0));
  own_ = std::move(gradients);
  before_ = std::move(now);
}

}  // namespace gradweave::runtime
