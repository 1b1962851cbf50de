#include "runtime/parameters.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "gradweave/error.h"
#include "runtime/buffers.h"
#include "runtime/passes.h"

namespace gradweave::runtime {

Parameters::Parameters(std::vector<NamedParameter> all) : all_(std::move(all)) {
  for (const NamedParameter& each : all_) {
    const std::string where = "parameter '" + each.name + "'";
    if (!each.tensor.is_non_overlapping_and_dense())
      throw InvalidInput("its memory overlaps or has gaps", where, "make it contiguous");
    if (each.tensor.device() != device()) {
      throw InvalidInput(
          "it is on " + each.tensor.device().str() + ", and '" + all_.front().name + "' on " + device().str(),
          where, "keep the parameters of one model on one device");
    }
  }
}

c10::Device Parameters::device() const { return all_.empty() ? c10::kCPU : all_.front().tensor.device(); }

std::vector<std::int32_t> Parameters::of_tensors(const RunPlan& plan) const {
  std::vector<std::int32_t> parameter_of;
  std::vector<std::uint8_t> known(all_.size());
  for (std::size_t t = 0; t < plan.index.tensors.size(); ++t) {
    const std::string& name = plan.index.tensor_names[t];
    const auto found = std::ranges::find(all_, name, &NamedParameter::name);
    if (found == all_.end() || found->tensor.numel() != plan.index.tensors[t].numel ||
        found->tensor.scalar_type() != scalar_type_of(plan.index.tensors[t].dtype)) {
      throw InvalidInput("the model has no such parameter of that size and dtype", "tensor '" + name + "'",
                         "make the plan from this model's workload");
    }
    parameter_of.push_back(static_cast<std::int32_t>(found - all_.begin()));
    known[static_cast<std::size_t>(parameter_of.back())] = 1;
  }
  const auto unknown = std::ranges::find(known, 0);
  if (unknown != known.end()) {
    throw InvalidInput("the plan does not know it",
                       "parameter '" + all_[static_cast<std::size_t>(unknown - known.begin())].name + "'",
                       "make the plan from this model's workload");
  }
  return parameter_of;
}

void Parameters::install(const RunPlan& plan, std::vector<std::int32_t> of_tensors) {
  plan_ = &plan;
  parameter_of_ = std::move(of_tensors);
  tensor_of_.assign(all_.size(), -1);
  for (std::size_t t = 0; t < parameter_of_.size(); ++t)
    tensor_of_[static_cast<std::size_t>(parameter_of_[t])] = static_cast<std::int32_t>(t);
}

at::Tensor Parameters::flat(std::int32_t tensor) const { return flattened((*this)[tensor].detach()); }

at::Tensor Parameters::flat_gradient(std::int32_t tensor) const {
  const at::Tensor& parameter = (*this)[tensor];
  const at::Tensor gradient = this->gradient(tensor);
  if (!gradient.defined())
    throw InvalidInput("its gradient was removed by another hook", text_of(tensor),
                       "leave .grad alone in hooks");
  if (gradient.layout() != c10::kStrided) {
    throw InvalidInput("its gradient is sparse", text_of(tensor),
                       "use sparse=False: schedules need dense gradients");
  }
  if (gradient.scalar_type() !=
      scalar_type_of(plan_->index.tensors[static_cast<std::size_t>(tensor)].dtype)) {
    throw InvalidInput("its dtype has changed since gradweave.wrap()", text_of(tensor),
                       "convert the model first, then wrap it");
  }
  const at::Tensor detached = gradient.detach();
  if (detached.strides() == parameter.strides()) return flattened(detached);
  at::Tensor ordered = at::empty_strided(parameter.sizes(), parameter.strides(), detached.options());
  ordered.copy_(detached);
  return flattened(ordered);
}

Slice Parameters::slice(std::int32_t block) const {
  const Block& place = this->block(block);
  return {number_of(tensor_of_block(block)), place.begin, place.end};
}

at::Tensor Parameters::part(const at::Tensor& whole, std::int32_t block) const {
  const Block& place = this->block(block);
  return whole.narrow(0, place.begin, place.end - place.begin);
}

std::string Parameters::text_of(std::int32_t tensor) const {
  return "parameter '" + plan_->index.tensor_names[static_cast<std::size_t>(tensor)] + "'";
}

}  // namespace gradweave::runtime
