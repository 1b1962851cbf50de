// Flat buffers of ops: made once, then reused for ever.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/TensorBody.h>

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "plan/run_plan.h"

namespace gradweave::runtime {

// Buffers by class: gradient ops over the same blocks are a class, and so are all parameter ops of one link
// and dtype; those that are staged are in the processor's memory. A class grows to as many buffers as are in use at
// once, within the first cycle. Used by the compute thread alone.
class BufferPool {
 public:
  BufferPool(const RunPlan& plan, c10::Device device);

  // Returns a flat tensor of the op's elements with undefined contents. Give it back with release().
  at::Tensor acquire(const RunOp& op);
  void release(const RunOp& op, at::Tensor flat);
  // A buffer that was acquired will not be given back.
  void forget(const RunOp& op);
  // Whether the class of `op` has one buffer only, so that its next acquire() returns the one just released.
  bool single(const RunOp& op) const;

  // Return what the buffers on a device hold, and what they will at least: one of each class.
  std::int64_t bytes(c10::Device on) const;
  std::int64_t least_bytes(c10::Device on) const;

 private:
  using Key = std::vector<std::int32_t>;
  struct Class {
    std::int64_t elements = 0;
    std::int64_t element_bytes = 0;
    c10::Device device = c10::kCPU;
    std::int32_t made = 0;
    bool certain = false;  // some buffer will be made
    std::vector<at::Tensor> free;
  };
  static Key key_of(const RunOp& op);

  std::map<Key, Class> classes_;
};

// Returns torch's scalar type for a dtype of the workload.
c10::ScalarType scalar_type_of(DType dtype);

// Of what sums are made.
inline constexpr std::array kFloats{DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};

}  // namespace gradweave::runtime
