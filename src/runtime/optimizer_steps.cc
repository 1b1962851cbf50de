#include "runtime/optimizer_steps.h"

#include <algorithm>

#include "runtime/fence.h"

namespace gradweave::runtime {
namespace {

// After so many new subsets, those that were not stepped meanwhile are dropped.
constexpr std::int32_t kNewOnes = 128;

}  // namespace

void OptimizerSteps::install() {
  subsets_.clear();
  for (std::size_t p = 0; p < parameters_.all().size(); ++p)
    subsets_[0].parameters.push_back(static_cast<std::int32_t>(p));
  known_.clear();
  last_ = 0;
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
  Known& known = known_[stepped];
  known.recent = true;
  if (known.number > 0) return known.number;
  known.number = ++last_;
  Subset& subset = subsets_[last_];
  for (std::int32_t t : stepped.tensors) subset.parameters.push_back(parameters_.number_of(t));
  std::ranges::sort(subset.parameters);
  for (std::int32_t b : stepped.blocks) subset.slices.push_back(parameters_.slice(b));
  if (last_ % kNewOnes == 0) drop_old();
  return last_;
}

void OptimizerSteps::drop_old() {
  std::erase_if(known_, [&](const auto& each) {
    const Known& known = each.second;
    return !known.recent && subsets_.erase(known.number) > 0;
  });
  for (auto& [stepped, known] : known_) known.recent = false;
}

}  // namespace gradweave::runtime
