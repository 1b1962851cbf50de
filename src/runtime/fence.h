// Order between streams of an accelerator; nothing at all on the CPU.
#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace gradweave::runtime {

// Marks moments of streams that another stream can wait for: one of each stream that it was recorded on, the
// latest. Autograd runs layers on the streams of their forward, so that several may write one message.
class Fence {
 public:
  // Marks this moment of the current stream.
  void record(c10::Device device) {
    if (device.is_cpu()) return;
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    auto mark = std::ranges::find(marks_, stream, [](const Mark& each) { return each.first; });
    if (mark == marks_.end()) mark = marks_.emplace(marks_.end(), stream, c10::Event(device.type()));
    mark->second.record(stream);
  }
  // Makes the current stream wait for all of them; the host goes on. A mark of a use before is long past.
  void wait(c10::Device device) const {
    if (device.is_cpu() || marks_.empty()) return;
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    for (const Mark& mark : marks_) mark.second.block(stream);
  }
  // Makes the host wait for all of them.
  void synchronize() const {
    for (const Mark& mark : marks_) mark.second.synchronize();
  }

 private:
  using Mark = std::pair<c10::Stream, c10::Event>;
  std::vector<Mark> marks_;
};

// Memory that the current stream uses and another one has allocated: once it is freed, it is not used again before what the
// current stream has been given by then has ended.
inline void keep_for_stream(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_cpu())
    tensor.record_stream(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

// Returns float32 memory of the host, which `device` copies from and to while the host works, if it has such memory.
inline at::Tensor floats_beside(c10::Device device, std::int64_t count) {
  const auto options = at::TensorOptions().dtype(c10::kFloat);
  if (device.is_cpu()) return at::empty({count}, options);
  try {
    return at::empty({count}, options.pinned_memory(true));
  } catch (const c10::Error&) {
    return at::empty({count}, options);
  }
}

// The calling thread works on a stream of its own for as long as this lives.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device) {
    if (!device.is_cpu()) guard_.emplace(new_stream(device));
  }
  // On `stream`, which goes on after what the current one was given.
  explicit OwnStream(c10::Stream stream) {
    Fence before;
    before.record(stream.device());
    guard_.emplace(stream);
    before.wait(stream.device());
  }
  static c10::Stream new_stream(c10::Device device) {
    return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace gradweave::runtime
