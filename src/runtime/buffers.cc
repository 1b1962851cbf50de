#include "runtime/buffers.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "runtime/anchors.h"

namespace gradweave::runtime {

c10::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return c10::kDouble;
    case DType::kFloat32:
      return c10::kFloat;
    case DType::kFloat16:
      return c10::kHalf;
    case DType::kBFloat16:
      return c10::kBFloat16;
    case DType::kFloat8E4M3FN:
      return c10::kFloat8_e4m3fn;
    case DType::kFloat8E5M2:
      return c10::kFloat8_e5m2;
    case DType::kInt64:
      return c10::kLong;
    case DType::kInt32:
      return c10::kInt;
    case DType::kInt16:
      return c10::kShort;
    case DType::kInt8:
      return c10::kChar;
    case DType::kUInt8:
      return c10::kByte;
    case DType::kBool:
      return c10::kBool;
    case DType::kComplex64:
      return c10::kComplexFloat;
    case DType::kComplex128:
      return c10::kComplexDouble;
  }
  return c10::kFloat;
}

BufferPool::BufferPool(const RunPlan& plan, c10::Device device) {
  for (const RunIteration& iteration : plan.iterations) {
    for (const RunOp& op : iteration.ops) {
      Class& buffers = classes_[key_of(op)];
      buffers.elements = std::max(buffers.elements, op.elements);
      buffers.element_bytes = size_of(op.dtype);
      buffers.device = op.staged ? c10::kCPU : device;
      buffers.certain |= !in_groups(op);  // whose buffers are those of anchors
    }
  }
}

BufferPool::Key BufferPool::key_of(const RunOp& op) {
  if (op.payload == Payload::kGradient) return op.blocks;
  return {-1, op.link, static_cast<std::int32_t>(op.dtype), op.staged ? 1 : 0};
}

at::Tensor BufferPool::acquire(const RunOp& op) {
  Class& buffers = classes_.at(key_of(op));
  if (buffers.free.empty()) {
    ++buffers.made;
    buffers.free.push_back(at::empty(
        {buffers.elements}, at::TensorOptions().dtype(scalar_type_of(op.dtype)).device(buffers.device)));
  }
  at::Tensor flat = std::move(buffers.free.back());
  buffers.free.pop_back();
  return flat.numel() == op.elements ? flat : flat.narrow(0, 0, op.elements);
}

void BufferPool::release(const RunOp& op, at::Tensor flat) {
  Class& buffers = classes_.at(key_of(op));
  if (flat.numel() < buffers.elements) flat = flat.as_strided({buffers.elements}, {1}, 0);
  buffers.free.push_back(std::move(flat));
}

void BufferPool::forget(const RunOp& op) { --classes_.at(key_of(op)).made; }

std::int64_t BufferPool::bytes(c10::Device on) const {
  std::int64_t bytes = 0;
  for (const auto& [key, buffers] : classes_)
    if (buffers.device == on) bytes += buffers.made * buffers.elements * buffers.element_bytes;
  return bytes;
}

std::int64_t BufferPool::least_bytes(c10::Device on) const {
  std::int64_t bytes = 0;
  for (const auto& [key, buffers] : classes_)
    if (buffers.certain && buffers.device == on) bytes += buffers.elements * buffers.element_bytes;
  return bytes;
}

bool BufferPool::single(const RunOp& op) const { return classes_.at(key_of(op)).made == 1; }

}  // namespace gradweave::runtime
