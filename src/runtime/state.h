// What a checkpoint keeps of the engine: tensors by name, the calls that write them read them again.
#pragma once

#include <ATen/core/TensorBody.h>

#include <map>
#include <string>
#include <utility>

#include "gradweave/error.h"

namespace gradweave::runtime {

inline at::Tensor copy_on(c10::Device device, const at::Tensor& tensor) {
  return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

class StateTensors {
 public:
  using Map = std::map<std::string, at::Tensor>;

  // One that writes.
  StateTensors() = default;
  // One that reads what another has written, wherever that lies now, to `device`.
  StateTensors(Map tensors, c10::Device device)
      : reads_(true), device_(device), tensors_(std::move(tensors)) {}

  bool reads() const { return reads_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  const Map& all() const { return tensors_; }

  // Writes a copy of a tensor, if it is defined; reading makes it one, or undefined.
  void operator()(const std::string& name, at::Tensor& tensor) {
    if (!reads_) {
      if (tensor.defined()) tensors_[name] = tensor.detach().clone();
    } else {
      tensor = has(name) ? copy_on(device_, tensors_[name]) : at::Tensor();
    }
  }
  // The contents of a tensor that stays the same one; undefined: nothing. Errors: InvalidInput if they are missing.
  void contents(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (!reads_) {
      tensors_[name] = tensor.detach().clone();
      return;
    }
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || found->second.sizes() != tensor.sizes()) {
      throw InvalidInput("its '" + name + "' does not fit its plan", "checkpoint",
                         "save and load it by the same version of gradweave");
    }
    tensor.copy_(found->second);
  }

 private:
  bool reads_ = false;
  c10::Device device_ = c10::kCPU;
  Map tensors_;
};

}  // namespace gradweave::runtime
