// Every op of torch that the processor has a kernel for, on the accelerator: its order is followed, then that kernel runs.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "device/extension/accelerator.h"

namespace gradweave::device {

std::vector<Bytes> bytes_of(std::span<const at::Tensor> tensors) {
  std::vector<Bytes> all;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.device().type() != kType || tensor.numel() == 0) continue;
    std::int64_t length = 1;
    for (std::int64_t d = 0; d < tensor.dim(); ++d) length += (tensor.size(d) - 1) * tensor.stride(d);
    const auto item = static_cast<std::uintptr_t>(tensor.itemsize());
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.storage().data()) +
                       static_cast<std::uintptr_t>(tensor.storage_offset()) * item;
    all.push_back({begin, begin + static_cast<std::uintptr_t>(length) * item});
  }
  return all;
}

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// What an op's tensors are for the processor, and what its results are for the accelerator.
class Views {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != kType) return tensor;
    at::Tensor view =
        at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage_of(tensor.storage())),
                                                 c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    shape(view, tensor);
    pairs_.push_back({tensor, view});
    return view;
  }

  // The tensor that `result` of a kernel is: one of the op's own, a view of one, or one with memory of its own.
  at::Tensor back(const at::Tensor& result) const {
    if (!result.defined()) return result;
    for (const Pair& pair : pairs_)
      if (pair.view.is_same(result)) return pair.tensor;
    for (const auto& [storage, view] : storages_) {
      if (view.unsafeGetStorageImpl() != result.storage().unsafeGetStorageImpl()) continue;
      at::Tensor tensor =
          at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), kKeys, result.dtype());
      shape(tensor, result);
      return tensor;
    }
    const at::Tensor tensor =
        at::empty_strided(result.sizes(), result.strides(), result.options().device(only_device()));
    written_.push_back(tensor);
    std::memcpy(Device::get().arena().for_kernels(tensor.mutable_data_ptr()), result.const_data_ptr(),
                std::min(tensor.storage().nbytes(), result.storage().nbytes()));
    return tensor;
  }

  // Kernels may give a result another shape, or more memory.
  void put_back_shapes() const {
    for (const Pair& pair : pairs_) {
      if (pair.view.sizes() == pair.tensor.sizes() && pair.view.strides() == pair.tensor.strides()) continue;
      const std::size_t bytes = pair.view.storage().nbytes();
      if (bytes > pair.tensor.storage().nbytes()) grow(pair.tensor.storage(), bytes, pair.view);
      shape(pair.tensor, pair.view);
    }
  }

  // Results with memory of their own.
  const std::vector<at::Tensor>& written() const { return written_; }

 private:
  struct Pair {
    at::Tensor tensor, view;
  };

  static void shape(const at::Tensor& to, const at::Tensor& from) {
    to.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  }
  static void grow(const c10::Storage& storage, std::size_t bytes, const at::Tensor& contents) {
    c10::DataPtr memory = c10::GetAllocator(kType)->allocate(bytes);
    std::memcpy(Device::get().arena().for_kernels(memory.get()), contents.storage().data(), bytes);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  const c10::Storage& storage_of(const c10::Storage& storage) {
    for (const auto& [known, view] : storages_)
      if (known.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return view;
    void* const memory = Device::get().arena().for_kernels(storage.data());
    c10::DataPtr data(
        memory, new c10::Storage(storage), [](void* kept) { delete static_cast<c10::Storage*>(kept); },
        c10::kCPU);
    return storages_
        .emplace_back(storage, c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(),
                                            std::move(data), c10::GetCPUAllocator(), true))
        .second;
  }

  std::vector<Pair> pairs_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
  mutable std::vector<at::Tensor> written_;
};

// Calls visit(tensor) for each tensor of a value, and puts what it returns in its place.
template <typename Visit>
void replace_tensors(c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    value = visit(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> all = value.toTensorVector();
    for (at::Tensor& each : all) each = visit(each);
    value = all;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> all;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector())
      all.push_back(each ? std::optional(visit(*each)) : std::nullopt);
    value = all;
  }
}

// Ops whose results, or their shapes, the host must know: it waits for them.
bool is_for_the_host(std::string_view name) {
  static const std::set<std::string_view> kNames{
      "aten::equal",    "aten::nonzero",    "aten::masked_select",     "aten::_unique",
      "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"};
  return kNames.contains(name);
}

bool is_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

// Whether torch only asks for shapes, as torch.compile does while it traces.
bool has_no_memory(const c10::IValue& value) {
  const auto is_meta = [](const at::Tensor& tensor) { return tensor.defined() && tensor.is_meta(); };
  if (value.isTensor()) return is_meta(value.toTensor());
  return value.isTensorList() && std::ranges::any_of(value.toTensorVector(), is_meta);
}

void run_on_processor(const c10::OperatorHandle& op, c10::Stack* stack) {
  if (std::ranges::any_of(torch::jit::last(*stack, op.schema().arguments().size()), has_no_memory))
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = toString(op.operator_name());
  const AllocationsAreOf named(name);
  const std::size_t count = schema.arguments().size(), first = stack->size() - count;
  Views views;
  std::vector<at::Tensor> reads, writes;
  for (std::size_t i = 0; i < count; ++i) {
    c10::IValue& value = (*stack)[first + i];
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    if (value.isDevice()) {
      if (value.toDevice().type() == kType) value = c10::Device(c10::kCPU);
      continue;
    }
    replace_tensors(value, [&](const at::Tensor& tensor) {
      (written ? writes : reads).push_back(tensor);
      return views.of(tensor);
    });
  }
  if (!schema.name().starts_with("aten::index")) {  // whose indices may be the host's
    for (const std::vector<at::Tensor>* tensors : {&reads, &writes})
      for (const at::Tensor& tensor : *tensors)
        TORCH_CHECK(!tensor.defined() || tensor.device().type() == kType || tensor.dim() == 0, name,
                    ": a tensor of the host among those of the accelerator");
  }
  const Stream stream = current_stream();
  if (!is_view(schema)) {
    const std::vector<Bytes> read = bytes_of(reads), write = bytes_of(writes);
    Device::get().launch(stream, {.name = name, .reads = read, .writes = write});
  }
  if (is_for_the_host(schema.name())) Device::get().wait(Device::get().record(stream));
  op.callBoxed(stack);
  views.put_back_shapes();
  for (std::size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i)
    replace_tensors((*stack)[i], [&](const at::Tensor& tensor) { return views.back(tensor); });
  if (const std::vector<Bytes> fresh = bytes_of(views.written()); !fresh.empty())
    Device::get().launch(stream, {.name = name, .writes = fresh});
}

at::Tensor empty(at::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, c10::GetAllocator(kType), kKeys,
                                   dtype.value_or(c10::get_default_dtype_as_scalartype()), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(kType), kKeys,
                                           dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

void host_waits_for_current() { Device::get().wait(Device::get().record(current_stream())); }

// What the host finds where a copy has not arrived.
void fill_with_garbage(const at::Tensor& tensor) {
  const at::Tensor garbage = at::empty(tensor.sizes(), tensor.options());
  std::memset(garbage.mutable_data_ptr(), 0xff, garbage.nbytes());
  tensor.copy_(garbage);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const std::vector<Bytes> read = bytes_of({&source, 1}), write = bytes_of({&self, 1});
  Device& device = Device::get();
  const Stream stream = current_stream();
  device.launch(stream, {.name = "aten::copy_", .reads = read, .writes = write});
  if (self.device().type() == kType) {
    for_kernels(self).copy_(for_kernels(source));
    if (source.is_cpu() && !non_blocking) host_waits_for_current();
  } else if (!non_blocking) {
    host_waits_for_current();
    self.copy_(for_kernels(source));
  } else {
    const at::Tensor copied = at::empty_like(self);
    copied.copy_(for_kernels(source));
    fill_with_garbage(self);
    device.on_host_wait(stream, [to = self, copied] {
      const at::AutoDispatchBelowADInplaceOrView arriving;
      to.copy_(copied);
    });
  }
  return self;
}

at::Scalar local_scalar(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const std::vector<Bytes> read = bytes_of({&self, 1});
  Device::get().launch(current_stream(), {.name = "aten::item", .reads = read});
  host_waits_for_current();
  return at::_local_scalar_dense(for_kernels(self));
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  Device::get().used_on(self.storage().data(), stream.id());
}

at::Tensor& set_part(at::Tensor& self, c10::Storage storage, std::int64_t offset, at::IntArrayRef size,
                     at::IntArrayRef stride) {
  return at::cpu::set_(self, std::move(storage), offset, size, stride);
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage storage) {
  return at::cpu::set_(self, std::move(storage));
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) { return at::cpu::set_(self, source); }

// Ops that read no element: torch's own implementation, by those above, does.
bool is_left_to_torch(std::string_view name) {
  static const std::set<std::string_view> kNames{"aten::_to_copy",   "aten::_conj",     "aten::_neg_view",
                                                 "aten::_copy_from", "aten::is_pinned", "aten::_pin_memory",
                                                 "aten::set_"};
  return kNames.contains(name) || name.starts_with("aten::new_") || name.ends_with("_like") ||
         name.starts_with("aten::empty");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("record_stream", record_stream);
  m.impl("set_.source_Storage_storage_offset", set_part);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  static const std::set<std::string_view> kOwn{"aten::copy_", "aten::_local_scalar_dense",
                                               "aten::record_stream"};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::") || kOwn.contains(name.name) || is_left_to_torch(name.name)) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    const bool runs = op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                      op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                      op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
    const bool tells = std::ranges::any_of(op->schema().returns(), [](const c10::Argument& result) {
      return result.type()->kind() == c10::TypeKind::TensorType ||
             result.type()->kind() == c10::TypeKind::ListType;
    });
    if (!runs || !(tells || op->schema().returns().empty() || is_for_the_host(name.name))) continue;
    const std::string whole =
        name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    m.impl(whole.c_str(), torch::CppFunction::makeFromBoxedFunction<run_on_processor>());
  }
}

}  // namespace

at::Tensor for_kernels(const at::Tensor& tensor) { return Views().of(tensor); }

}  // namespace gradweave::device
