// What one iteration computes: layers in forward order, each with its times and its parameter tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gradweave/decimal.h"

namespace gradweave {

// Element types, named as in torch.
enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool,
  kComplex64,
  kComplex128,
};

// Returns the size of one element in bytes.
std::int64_t size_of(DType dtype);
// Returns that of what a parameter has gained, as averages that are compressed, or that an outer optimizer uses, have it: float32
// where the parameter has 16 bits.
std::int64_t size_of_gain(DType dtype);
// Returns torch's name, e.g. "float32".
std::string_view name_of(DType dtype);
// Returns the dtype called `name`, or nothing.
std::optional<DType> dtype_from_name(std::string_view name);

struct Tensor {
  std::string name;
  std::int64_t numel = 0;  // >= 1
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;  // empty: not known

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

struct Layer {
  std::string name;
  Nanoseconds forward_ns = 0;
  Nanoseconds backward_ns = 0;
  // Time of one all-reduce of the whole layer, start-up included, where a published table gives only that.
  std::optional<Nanoseconds> communication_ns;
  std::vector<Tensor> tensors;  // a shared tensor belongs to the first layer that uses it

  friend bool operator==(const Layer&, const Layer&) = default;
};

struct Workload {
  std::string name;
  std::string description;    // free text, for people
  std::string source;         // where the numbers come from, for people
  std::vector<Layer> layers;  // in forward order, at least one

  friend bool operator==(const Workload&, const Workload&) = default;
};

// A tensor with its place in the model.
struct TensorPlace {
  std::size_t layer = 0;
  std::size_t position = 0;  // in the layer's `tensors`
  std::int64_t numel = 0;
  DType dtype = DType::kFloat32;
  std::int64_t layer_offset = 0;  // elements of the layer's tensors that come before
  std::int64_t rows = 0;          // of the matrix that its shape makes of it: matrix_rows(); 0: not known
};

// Returns how many rows a tensor of this shape has, seen as a matrix: its first dimension that is not 1; 1 for a vector.
std::int64_t matrix_rows(std::span<const std::int64_t> shape);

// Derived quantities of a workload, computed once. Owns copies; the workload need not outlive it.
//
// Times are relative to the start of an iteration without any communication:
//   forward_start[l] = sum_{j<l} forward_ns(j)          forward_end[l] = forward_start[l] + forward_ns(l)
//   backward_start[l] = T_f + sum_{j>l} backward_ns(j)  backward_end[l] = backward_start[l] + backward_ns(l)
// The gradients of layer l exist at backward_end[l].
struct WorkloadIndex {
  explicit WorkloadIndex(const Workload& workload);

  std::size_t layer_count = 0;
  std::vector<Nanoseconds> forward_start, forward_end, backward_start, backward_end;
  Nanoseconds forward_total = 0;
  Nanoseconds backward_total = 0;
  Nanoseconds compute_total = 0;  // forward_total + backward_total

  std::vector<TensorPlace> tensors;          // every tensor, in forward order
  std::vector<std::string> tensor_names;     // parallel to `tensors`
  std::vector<std::size_t> first_tensor;     // per layer; size layer_count + 1
  std::vector<std::int64_t> layer_elements;  // per layer
  std::int64_t total_bytes = 0;
  std::unordered_map<std::string, std::size_t> tensor_by_name;

  // Returns the index of the tensor called `name`, or nothing. O(1).
  std::optional<std::size_t> find_tensor(const std::string& name) const;
  // Returns the size of tensor `t` in bytes.
  std::int64_t tensor_bytes(std::size_t t) const;
};

// Throws InvalidInput naming the JSON key of the first fault: no layer, duplicate or empty names, negative
// times, numel < 1, a shape of another numel, or sums that leave the range of exact arithmetic (2^53 ns, 2^53 bytes).
void check(const Workload& workload);

// Returns a hash (32 hex digits) of all that influences planning: names, times, tensors; not the description. A shape
// counts where one is known.
std::string hash_of(const Workload& workload);

// Returns a workload whose layer times are the maximum over `classes` of workers (same layers and tensors):
// what a plan must be decided on, since an op starts only when the slowest worker has released it. Errors:
// InvalidInput if layers or tensors differ between classes.
Workload slowest_of(const std::vector<Workload>& classes);

}  // namespace gradweave
