#include "runtime/hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "gradweave/error.h"

namespace gradweave::runtime {

struct GradientHooks::Shared {
  Callback callback;  // empty once the owner is gone
};

class GradientHooks::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::shared_ptr<Shared> shared, std::int32_t index,
       std::unique_ptr<torch::autograd::PostAccumulateGradHook> before)
      : shared_(std::move(shared)), index_(index), before_(std::move(before)) {}

  void operator()(const torch::autograd::Variable& tensor) override {
    if (before_) (*before_)(tensor);
    if (shared_->callback) shared_->callback(index_);
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& /*unused*/) const override {
    throw InvalidInput("compiled autograd would hand gradients over without the engine",
                       "torch._dynamo.config.compiled_autograd",
                       "switch it off; torch.compile of the model works without it");
  }

  std::unique_ptr<torch::autograd::PostAccumulateGradHook> take_before() { return std::move(before_); }

 private:
  std::shared_ptr<Shared> shared_;
  std::int32_t index_;
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> before_;
};

GradientHooks::GradientHooks(std::vector<at::Tensor> parameters, Callback callback)
    : parameters_(std::move(parameters)), shared_(std::make_shared<Shared>(std::move(callback))) {
  hooks_.resize(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].defined()) continue;
    auto before = std::move(torch::autograd::impl::post_acc_grad_hooks(parameters_[i]));
    auto hook = std::make_unique<Hook>(shared_, static_cast<std::int32_t>(i), std::move(before));
    hooks_[i] = hook.get();
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i], std::move(hook));
  }
}

GradientHooks::~GradientHooks() {
  shared_->callback = nullptr;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].defined()) continue;
    auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameters_[i]);
    if (slot.get() != hooks_[i]) continue;
    auto before = static_cast<Hook*>(slot.get())->take_before();
    slot = std::move(before);
  }
}

bool GradientHooks::are_on(const at::Tensor& parameter) {
  return dynamic_cast<const Hook*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get()) != nullptr;
}

std::int32_t GradientHooks::lost() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].defined() &&
        torch::autograd::impl::post_acc_grad_hooks(parameters_[i]).get() != hooks_[i])
      return static_cast<std::int32_t>(i);
  }
  return -1;
}

}  // namespace gradweave::runtime
