// Memory, streams and events of the simulated accelerator, as torch asks for them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstddef>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "device/extension/accelerator.h"

namespace gradweave::device {
namespace {

thread_local Stream current = 0;
thread_local const std::string* allocating = nullptr;

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory =
        Device::get().allocate(bytes, current, allocating != nullptr ? "memory of " + *allocating : "memory");
    return {memory, memory, raw_deleter(), only_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* memory) { Device::get().free(memory); };
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    Arena& arena = Device::get().arena();
    std::memcpy(arena.for_kernels(to), arena.for_kernels(from), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    Device::get().used_on(memory.get(), stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto allocated = static_cast<std::int64_t>(Device::get().allocated());
    stats.allocated_bytes[all].current = stats.reserved_bytes[all].current = allocated;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex) override {
    const std::size_t all = Device::get().arena().capacity();
    return {all - Device::get().allocated(), all};
  }
};

// Memory of the host that the accelerator copies from and to beside the host's work.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = c10::alloc_cpu(bytes);
    const std::lock_guard lock(mutex_);
    sizes_[static_cast<const std::byte*>(memory)] = bytes;
    return {memory, memory, raw_deleter(), c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool has(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex_);
    const auto after = sizes_.upper_bound(at);
    return after != sizes_.begin() && at < std::prev(after)->first + std::prev(after)->second;
  }

 private:
  static void release(void* memory);

  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> sizes_;
};

Allocator allocator;
PinnedAllocator pinned;

void PinnedAllocator::release(void* memory) {
  {
    const std::lock_guard lock(pinned.mutex_);
    pinned.sizes_.erase(static_cast<const std::byte*>(memory));
  }
  c10::free_cpu(memory);
}

Event& event_of(void* event) { return *static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return only_device(); }
  c10::Device getDevice() const override { return only_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return torch_stream(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return torch_stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return torch_stream(Device::get().new_stream());
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return torch_stream(Device::get().new_stream());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return torch_stream(std::exchange(current, stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return Device::get().reached(Device::get().record(stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Device::get().wait(Device::get().record(stream.id()));
  }
  void synchronizeDevice(c10::DeviceIndex) const override { Device::get().wait_for_all(); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    event_of(*event) = Device::get().record(stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    Device::get().block(stream.id(), event_of(event), passes(engine_site("block")));
  }
  bool queryEvent(void* event) const override { return Device::get().reached(event_of(event)); }
  void synchronizeEvent(void* event) const override { Device::get().wait(event_of(event)); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    return static_cast<double>(Device::elapsed(event_of(begin), event_of(end))) / 1e6;
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    Device::get().used_on(memory.get(), stream.id());
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  bool isPinnedPtr(const void* address) const override { return pinned.has(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  c10::Device getDeviceFromPtr(void*) const override { return only_device(); }
  // FSDP2 frees what it has gathered, and makes room for it again.
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    TORCH_CHECK(storage.nbytes() == 0 || bytes == 0, "sim resizes from nothing or to nothing");
    storage.set_data_ptr_noswap(allocator.allocate(bytes));
    storage.set_nbytes(bytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
const bool registered = [] {
  c10::SetAllocator(kType, &allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // torch keeps it
  return true;
}();

}  // namespace

Stream current_stream() { return current; }

AllocationsAreOf::AllocationsAreOf(const std::string& op) : before_(std::exchange(allocating, &op)) {}
AllocationsAreOf::~AllocationsAreOf() { allocating = before_; }

}  // namespace gradweave::device
