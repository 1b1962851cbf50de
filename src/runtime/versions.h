// What the caller does to gradients and parameters in between, as far as version counters tell.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "run/archive.h"
#include "run/host.h"
#include "runtime/parameters.h"

namespace gradweave::runtime {

// By tensor of the plan in force. `parameters` must outlive it.
class Versions {
 public:
  explicit Versions(const Parameters& parameters) : parameters_(parameters) {}
  void install(std::size_t tensors);

  void begin_backward() { shared_.clear(); }
  // Its gradient is handed over as it is now.
  void hand_over(std::int32_t tensor);
  run::Kept kept(std::int32_t tensor) const;

  void note_parameter(std::int32_t tensor);
  // Whether a parameter was changed since it was noted; one that was never noted was not.
  bool parameter_changed(std::int32_t tensor) const;

  // Which parameters were noted. Reading notes them as they are now.
  void archive(run::Archive& numbers);

 private:
  // .grad as it was handed over.
  struct Handed {
    const void* data = nullptr;
    std::int64_t version = 0;
    friend bool operator==(const Handed&, const Handed&) = default;
  };
  static Handed now(const at::Tensor& gradient) { return {gradient.const_data_ptr(), gradient._version()}; }

  const Parameters& parameters_;
  std::vector<Handed> handed_;
  // By memory that several gradients are views of, which have one version: the last one that was handed over in this backward.
  std::unordered_map<const void*, std::int64_t> shared_;
  std::vector<std::int64_t> noted_;  // -1: not noted
};

}  // namespace gradweave::runtime
