#include "gradweave/workload.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "gradweave/error.h"
#include "model/hash.h"

namespace gradweave {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::int64_t size;
};

constexpr std::array kDTypes = {
    DTypeRow{DType::kFloat64, "float64", 8},
    DTypeRow{DType::kFloat32, "float32", 4},
    DTypeRow{DType::kFloat16, "float16", 2},
    DTypeRow{DType::kBFloat16, "bfloat16", 2},
    DTypeRow{DType::kFloat8E4M3FN, "float8_e4m3fn", 1},
    DTypeRow{DType::kFloat8E5M2, "float8_e5m2", 1},
    DTypeRow{DType::kInt64, "int64", 8},
    DTypeRow{DType::kInt32, "int32", 4},
    DTypeRow{DType::kInt16, "int16", 2},
    DTypeRow{DType::kInt8, "int8", 1},
    DTypeRow{DType::kUInt8, "uint8", 1},
    DTypeRow{DType::kBool, "bool", 1},
    DTypeRow{DType::kComplex64, "complex64", 8},
    DTypeRow{DType::kComplex128, "complex128", 16},
};

// Sums stay exact in the doubles of JSON and far from overflow in the simulator.
constexpr std::int64_t kMaxTotal = std::int64_t{1} << 53;

// Adds `value` to `total` or throws.
void add(std::int64_t& total, std::int64_t value, const std::string& where, const char* unit) {
  if (value > kMaxTotal - total) {
    throw InvalidInput(std::string("the total exceeds 2^53 ") + unit, where, "give smaller values");
  }
  total += value;
}

void check_time(Nanoseconds time, Nanoseconds& total, const std::string& where) {
  if (time < 0) throw InvalidInput("must not be negative", where, "give a time in microseconds, 0 or more");
  add(total, time, where, "ns");
}

// The caller owes a sound numel.
void check_shape(const Tensor& tensor, const std::string& where) {
  std::int64_t rest = tensor.numel;
  for (const std::int64_t size : tensor.shape) {
    if (size < 1 || rest % size != 0) {
      rest = 0;
      break;
    }
    rest /= size;
  }
  if (rest != 1 && !tensor.shape.empty()) {
    throw InvalidInput("does not multiply to numel, " + std::to_string(tensor.numel), where,
                       "correct one of the two, or leave the shape out");
  }
}

}  // namespace

std::int64_t size_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].size; }

std::int64_t size_of_gain(DType dtype) {
  const bool short_float = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  return size_of(short_float ? DType::kFloat32 : dtype);
}

std::string_view name_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto row = std::ranges::find(kDTypes, name, &DTypeRow::name);
  if (row == kDTypes.end()) return std::nullopt;
  return row->dtype;
}

WorkloadIndex::WorkloadIndex(const Workload& workload) : layer_count(workload.layers.size()) {
  for (const Layer& layer : workload.layers) {
    forward_start.push_back(forward_total);
    forward_total += layer.forward_ns;
    forward_end.push_back(forward_total);
  }
  backward_start.resize(layer_count);
  backward_end.resize(layer_count);
  for (std::size_t l = layer_count; l-- > 0;) {
    backward_start[l] = forward_total + backward_total;
    backward_total += workload.layers[l].backward_ns;
    backward_end[l] = forward_total + backward_total;
  }
  compute_total = forward_total + backward_total;

  for (std::size_t l = 0; l < layer_count; ++l) {
    first_tensor.push_back(tensors.size());
    std::int64_t offset = 0;
    for (std::size_t position = 0; position < workload.layers[l].tensors.size(); ++position) {
      const Tensor& tensor = workload.layers[l].tensors[position];
      tensor_by_name.emplace(tensor.name, tensors.size());
      const std::int64_t rows = tensor.shape.empty() ? 0 : matrix_rows(tensor.shape);
      tensors.push_back({l, position, tensor.numel, tensor.dtype, offset, rows});
      tensor_names.push_back(tensor.name);
      offset += tensor.numel;
      total_bytes += tensor.numel * size_of(tensor.dtype);
    }
    layer_elements.push_back(offset);
  }
  first_tensor.push_back(tensors.size());
}

std::optional<std::size_t> WorkloadIndex::find_tensor(const std::string& name) const {
  const auto found = tensor_by_name.find(name);
  if (found == tensor_by_name.end()) return std::nullopt;
  return found->second;
}

std::int64_t WorkloadIndex::tensor_bytes(std::size_t t) const {
  return tensors[t].numel * size_of(tensors[t].dtype);
}

std::int64_t matrix_rows(std::span<const std::int64_t> shape) {
  const auto is_wide = [](std::int64_t size) { return size > 1; };
  return std::ranges::count_if(shape, is_wide) < 2 ? 1 : *std::ranges::find_if(shape, is_wide);
}

void check(const Workload& workload) {
  if (workload.layers.empty())
    throw InvalidInput("must have at least one layer", "layers", "list the model's layers");
  std::unordered_set<std::string_view> layer_names, tensor_names;
  Nanoseconds time = 0;
  Nanoseconds communication = 0;
  std::int64_t bytes = 0;
  for (std::size_t l = 0; l < workload.layers.size(); ++l) {
    const Layer& layer = workload.layers[l];
    const std::string where = "layers[" + std::to_string(l) + "]";
    if (layer.name.empty()) throw InvalidInput("must not be empty", where + ".name", "name the layer");
    if (!layer_names.insert(layer.name).second) {
      throw InvalidInput("repeats the name '" + layer.name + "'", where + ".name",
                         "give each layer its own name");
    }
    check_time(layer.forward_ns, time, where + ".forward_us");
    check_time(layer.backward_ns, time, where + ".backward_us");
    if (layer.communication_ns)
      check_time(*layer.communication_ns, communication, where + ".communication_us");
    for (std::size_t t = 0; t < layer.tensors.size(); ++t) {
      const Tensor& tensor = layer.tensors[t];
      const std::string at = where + ".tensors[" + std::to_string(t) + "]";
      if (tensor.name.empty()) throw InvalidInput("must not be empty", at + ".name", "name the tensor");
      if (!tensor_names.insert(tensor.name).second) {
        throw InvalidInput(
            "repeats the name '" + tensor.name + "'", at + ".name",
            "give each tensor its own name; a shared tensor belongs to the first layer that uses it");
      }
      if (tensor.numel < 1)
        throw InvalidInput("must be at least 1", at + ".numel", "leave out empty tensors");
      if (tensor.numel > kMaxTotal)
        throw InvalidInput("exceeds 2^53", at + ".numel", "give a smaller number");
      add(bytes, tensor.numel * size_of(tensor.dtype), at + ".numel", "bytes");
      check_shape(tensor, at + ".shape");
    }
  }
}

std::string hash_of(const Workload& workload) {
  std::string text;
  const auto put = [&text](const std::string& part) {
    text.append(std::to_string(part.size())).append(":").append(part);
  };
  const auto put_number = [&text](std::int64_t number) { text.append(std::to_string(number)).append(";"); };
  for (const Layer& layer : workload.layers) {
    put(layer.name);
    put_number(layer.forward_ns);
    put_number(layer.backward_ns);
    put_number(layer.communication_ns.value_or(-1));
    put_number(static_cast<std::int64_t>(layer.tensors.size()));
    for (const Tensor& tensor : layer.tensors) {
      put(tensor.name);
      put_number(tensor.numel);
      put_number(static_cast<std::int64_t>(tensor.dtype));
      for (const std::int64_t size : tensor.shape) text.append("x"), put_number(size);
    }
  }
  return hash_hex(text);
}

namespace {

// Returns the key of the first thing besides times in which `other` is not `first`; empty if there is none.
std::string first_difference(const Workload& first, const Workload& other) {
  if (other.layers.size() != first.layers.size()) return "layers";
  for (std::size_t l = 0; l < first.layers.size(); ++l) {
    const Layer& a = first.layers[l];
    const Layer& b = other.layers[l];
    const std::string at = "layers[" + std::to_string(l) + "].";
    if (b.name != a.name) return at + "name";
    if (b.communication_ns != a.communication_ns) return at + "communication_us";
    if (b.tensors.size() != a.tensors.size()) return at + "tensors";
    for (std::size_t t = 0; t < a.tensors.size(); ++t) {
      const std::string tensor = at + "tensors[" + std::to_string(t) + "].";
      if (b.tensors[t].name != a.tensors[t].name) return tensor + "name";
      if (b.tensors[t].numel != a.tensors[t].numel) return tensor + "numel";
      if (b.tensors[t].dtype != a.tensors[t].dtype) return tensor + "dtype";
      if (b.tensors[t].shape != a.tensors[t].shape) return tensor + "shape";
    }
  }
  return {};
}

}  // namespace

Workload slowest_of(const std::vector<Workload>& classes) {
  if (classes.empty()) throw InvalidInput("must have at least one class", "workers' classes");
  Workload slowest = classes.front();
  for (const Workload& other : classes) {
    const std::string difference = first_difference(slowest, other);
    if (!difference.empty()) {
      throw InvalidInput("is not what the first class of workers has", difference,
                         "classes of workers may differ in forward_us and backward_us only");
    }
    for (std::size_t l = 0; l < slowest.layers.size(); ++l) {
      Layer& layer = slowest.layers[l];
      layer.forward_ns = std::max(layer.forward_ns, other.layers[l].forward_ns);
      layer.backward_ns = std::max(layer.backward_ns, other.layers[l].backward_ns);
    }
  }
  return slowest;
}

}  // namespace gradweave
