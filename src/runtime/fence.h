// Order between streams of an accelerator; nothing at all on the CPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace gradweave::runtime {

// Marks a moment of the current stream that another stream can wait for.
class Fence {
 public:
  void record(c10::Device device) {
    if (device.is_cpu()) return;
    if (!event_) event_.emplace(device.type());
    event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  // Makes the current stream wait; the host goes on.
  void wait(c10::Device device) const {
    if (device.is_cpu() || !event_) return;
    event_->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }

 private:
  std::optional<c10::Event> event_;
};

// The calling thread works on a stream of its own for as long as this lives.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device) {
    if (!device.is_cpu())
      guard_.emplace(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace gradweave::runtime
