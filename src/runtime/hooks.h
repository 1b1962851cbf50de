// Hooks on gradients, in C++, that live beside the user's own.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace gradweave::runtime {

// Calls back with a parameter's index when its gradient is complete. Parameters that are undefined have no hook.
//
// The post-accumulate slot of a tensor holds one object. Ours keeps what it finds there and runs it first. A
// Python hook registered later joins what it finds only if that is a Python hook dictionary, and replaces it
// otherwise: the caller owes that each parameter has had a Python hook registered (and removed) before, and
// then lost() is never true.
class GradientHooks {
 public:
  using Callback = std::function<void(std::int32_t)>;
  GradientHooks(std::vector<at::Tensor> parameters, Callback callback);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // Whether the parameter has a hook of some object of this class, and no later one over it.
  static bool are_on(const at::Tensor& parameter);

  // Returns the index of the first parameter whose hook was replaced, or -1. About 1 ns each.
  std::int32_t lost() const;

 private:
  struct Shared;
  class Hook;
  std::vector<at::Tensor> parameters_;
  std::shared_ptr<Shared> shared_;
  std::vector<const void*> hooks_;
};

}  // namespace gradweave::runtime
