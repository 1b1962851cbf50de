#include "runtime/optimizer_steps.h"

#include <algorithm>

#include "runtime/fence.h"

namespace gradweave::runtime {

void OptimizerSteps::install() {
  subsets_.assign(1, {});
  for (std::size_t p = 0; p < parameters_.all().size(); ++p)
    subsets_[0].parameters.push_back(static_cast<std::int32_t>(p));
  numbers_.clear();
}

void OptimizerSteps::step(const Stepped& stepped) {
  const std::int32_t number = number_of(stepped);
  // The gradients of a layer on a stream of its own are that stream's, and freed before the step is over.
  for (const std::int32_t p : subset(number).parameters) {
    const NamedParameter& each = parameters_.all()[static_cast<std::size_t>(p)];
    if (!each.tensor.is_cpu()) keep_for_stream(each.gradient());  // asking for a shard's takes time
  }
  stepper_(number);
}

std::int32_t OptimizerSteps::number_of(const Stepped& stepped) {
  if (stepped.tensors.size() == parameters_.all().size()) return 0;
  const auto [found, added] = numbers_.try_emplace(stepped, static_cast<std::int32_t>(subsets_.size()));
  if (added) {
    Subset& subset = subsets_.emplace_back();
    for (std::int32_t t : stepped.tensors) subset.parameters.push_back(parameters_.number_of(t));
    std::ranges::sort(subset.parameters);
    for (std::int32_t b : stepped.blocks) subset.slices.push_back(parameters_.slice(b));
  }
  return found->second;
}

}  // namespace gradweave::runtime
