// An accelerator without hardware: it only knows which work each stream is ordered after.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>
#include <mutex>
#include <set>
#include <string>

namespace gradweave::runtime {

class FakeDevice {
 public:
  static FakeDevice& get() {
    static FakeDevice device;
    return device;
  }
  static c10::Device device() { return {c10::DeviceType::PrivateUse1, 0}; }
  static c10::Stream stream(int number) { return c10::Stream(c10::Stream::UNSAFE, device(), number); }
  static c10::Stream& current() {
    thread_local c10::Stream stream = FakeDevice::stream(0);
    return stream;
  }

  // Enqueues work on the calling thread's current stream.
  void work(const std::string& what) {
    const std::lock_guard lock(mutex_);
    done_before_[current().id()].insert(what);
  }
  // Whether what is enqueued on the current stream from now on runs after `what`.
  bool is_after(const std::string& what) {
    const std::lock_guard lock(mutex_);
    return done_before_[current().id()].contains(what);
  }
  void record(void** event, const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    if (*event == nullptr) *event = new std::set<std::string>();
    *static_cast<std::set<std::string>*>(*event) = done_before_[stream.id()];
  }
  void block(void* event, const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    done_before_[stream.id()].merge(std::set(*static_cast<std::set<std::string>*>(event)));
  }
  c10::Stream new_stream() {
    const std::lock_guard lock(mutex_);
    return stream(++streams_);
  }

 private:
  std::mutex mutex_;
  std::map<c10::StreamId, std::set<std::string>> done_before_;
  int streams_ = 100;
};

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return FakeDevice::device(); }
  c10::Device getDevice() const override { return FakeDevice::device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return FakeDevice::current(); }
  c10::Stream getDefaultStream(c10::Device) const override { return FakeDevice::stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return FakeDevice::get().new_stream();
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return std::exchange(FakeDevice::current(), stream);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    FakeDevice::get().record(event, stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    FakeDevice::get().block(event, stream);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<std::set<std::string>*>(event);
  }
};

}  // namespace gradweave::runtime
