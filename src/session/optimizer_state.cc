// What torch's optimizers keep of each parameter, where ranks that have stepped on their own go on alike.
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "session/optimizer.h"

namespace gradweave {
namespace {

const std::string kStates = "the average of optimizers' states";

// Of one parameter. Tensors that are null, or undefined, are not kept.
struct Kept {
  std::array<at::Tensor*, 3> tensors{};
  std::int64_t* steps = nullptr;
};

Kept kept(torch::optim::SGDParamState& state) { return {{&state.momentum_buffer()}}; }
Kept kept(torch::optim::AdagradParamState& state) { return {{&state.sum()}, &state.step()}; }
Kept kept(torch::optim::RMSpropParamState& state) {
  return {{&state.square_avg(), &state.momentum_buffer(), &state.grad_avg()}, &state.step()};
}
template <typename AdamState>
Kept kept(AdamState& state) {
  return {{&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()}, &state.step()};
}

template <typename State>
Kept kept_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, bool make) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found != optimizer.state().end()) return kept(static_cast<State&>(*found->second));
  if (!make) return {};
  auto made = std::make_unique<State>();
  const Kept parts = kept(*made);
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
  return parts;
}

using KeptOf = Kept (*)(torch::optim::Optimizer&, const at::Tensor&, bool make);

// Null where it is not known.
KeptOf kept_by(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<const SGD*>(&optimizer) != nullptr) return &kept_of<SGDParamState>;
  if (dynamic_cast<const Adam*>(&optimizer) != nullptr) return &kept_of<AdamParamState>;
  if (dynamic_cast<const AdamW*>(&optimizer) != nullptr) return &kept_of<AdamWParamState>;
  if (dynamic_cast<const RMSprop*>(&optimizer) != nullptr) return &kept_of<RMSpropParamState>;
  if (dynamic_cast<const Adagrad*>(&optimizer) != nullptr) return &kept_of<AdagradParamState>;
  return nullptr;
}

}  // namespace

bool SessionOptimizer::steps_one_by_one() const { return kept_by(optimizer_) != nullptr; }

void SessionOptimizer::average_states(const std::vector<std::int32_t>& places,
                                      const runtime::ControlGroup& ranks) {
  const KeptOf kept_of_one = kept_by(optimizer_);
  if (kept_of_one == nullptr) return;
  const auto at_place = [this](std::int32_t p) { return parameters_[static_cast<std::size_t>(p)].tensor; };
  std::vector<double> present;
  for (const std::int32_t p : places) {
    for (const at::Tensor* tensor : kept_of_one(optimizer_, at_place(p), false).tensors)
      present.push_back(tensor != nullptr && tensor->defined() ? 1 : 0);
  }
  present = ranks.largest(present, kStates);
  std::vector<at::Tensor> tensors;
  std::vector<std::int64_t*> counts;
  auto next = present.begin();
  for (const std::int32_t p : places) {
    const auto here = next;
    next += std::tuple_size_v<decltype(Kept::tensors)>;
    if (std::find(here, next, 1.0) == next) continue;
    const Kept mine = kept_of_one(optimizer_, at_place(p), true);
    for (std::size_t k = 0; k < mine.tensors.size(); ++k) {
      if (here[static_cast<std::ptrdiff_t>(k)] == 0) continue;
      at::Tensor& tensor = *mine.tensors[k];
      if (!tensor.defined()) tensor = at::zeros_like(at_place(p)).detach();
      tensors.push_back(tensor);
    }
    if (mine.steps != nullptr) counts.push_back(mine.steps);
  }
  ranks.average(tensors, kStates);
  if (counts.empty()) return;
  std::vector<double> means;
  for (const std::int64_t* count : counts) means.push_back(static_cast<double>(*count));
  means = ranks.means(means, kStates);
  for (std::size_t n = 0; n < counts.size(); ++n) *counts[n] = std::llround(means[n]);
}

}  // namespace gradweave
