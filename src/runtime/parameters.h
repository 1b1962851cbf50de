// The model's parameters: numbered as they were given, and as the plan in force has them, which are its tensors.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/run_plan.h"

namespace gradweave::runtime {

// Where a gradient is that is not its tensor's own: of a shard, in the caller's parameter.
class GradientPlace {
 public:
  virtual ~GradientPlace() = default;
  // Returns the gradient, in the shape of the tensor; undefined where there is none.
  virtual at::Tensor get() const = 0;
  virtual void set(const at::Tensor& gradient) = 0;  // undefined: none
};

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  std::shared_ptr<GradientPlace> place = nullptr;  // of the gradient; null: the tensor itself

  at::Tensor gradient() const { return place ? place->get() : tensor.grad(); }
  void set_gradient(at::Tensor gradient) const {
    place ? place->set(gradient) : void(tensor.mutable_grad() = std::move(gradient));
  }
  // Whether the caller may hold it besides.
  bool gradient_is_held() const { return place || tensor.mutable_grad().use_count() > 1; }
};

// Elements [begin, end) of a parameter, in memory order.
struct Slice {
  std::int32_t parameter = 0;
  std::int64_t begin = 0, end = 0;
};

class Parameters {
 public:
  // Errors: InvalidInput for memory that overlaps or has gaps, and for parameters on several devices.
  explicit Parameters(std::vector<NamedParameter> all);

  const std::vector<NamedParameter>& all() const { return all_; }
  c10::Device device() const;

  // Returns, for each tensor of the plan, its parameter. Errors: InvalidInput naming what does not match.
  std::vector<std::int32_t> of_tensors(const RunPlan& plan) const;
  // Takes a plan into force, which outlives what follows; of_tensors() of it.
  void install(const RunPlan& plan, std::vector<std::int32_t> of_tensors);
  const RunPlan& plan() const { return *plan_; }

  std::int32_t number_of(std::int32_t tensor) const {
    return parameter_of_[static_cast<std::size_t>(tensor)];
  }
  std::int32_t tensor_of(std::int32_t parameter) const {
    return tensor_of_[static_cast<std::size_t>(parameter)];
  }
  const std::vector<std::int32_t>& numbers() const { return parameter_of_; }  // by tensor

  const NamedParameter& named(std::int32_t tensor) const {
    return all_[static_cast<std::size_t>(number_of(tensor))];
  }
  const at::Tensor& operator[](std::int32_t tensor) const { return named(tensor).tensor; }
  at::Tensor gradient(std::int32_t tensor) const { return named(tensor).gradient(); }
  // One dimension in memory order: the parameter itself; its gradient, a copy where its strides differ, not owned by
  // Python. Errors: InvalidInput for a gradient that is gone, sparse, or of another dtype than the parameter had.
  at::Tensor flat(std::int32_t tensor) const;
  at::Tensor flat_gradient(std::int32_t tensor) const;

  const Block& block(std::int32_t block) const { return plan_->blocks[static_cast<std::size_t>(block)]; }
  std::int32_t tensor_of_block(std::int32_t block) const {
    return plan_->block_tensor[static_cast<std::size_t>(block)];
  }
  Slice slice(std::int32_t block) const;
  // Of `whole`, which is flat, the elements of a block.
  at::Tensor part(const at::Tensor& whole, std::int32_t block) const;
  std::string text_of(std::int32_t tensor) const;

 private:
  std::vector<NamedParameter> all_;
  const RunPlan* plan_ = nullptr;
  std::vector<std::int32_t> parameter_of_, tensor_of_;
};

}  // namespace gradweave::runtime
