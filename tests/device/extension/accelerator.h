// What torch's side of the simulated accelerator shares.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"

namespace gradweave::device {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

inline c10::Device only_device() { return {kType, 0}; }
inline c10::Stream torch_stream(Stream stream) {
  return c10::Stream(c10::Stream::UNSAFE, only_device(), stream);
}

// The calling thread's.
Stream current_stream();

// Returns the memory that a tensor's elements lie in, from the first to the last: none for a tensor without elements or elsewhere.
// What lies between the elements of a view counts too.
std::vector<Bytes> bytes_of(std::span<const at::Tensor> tensors);

// Returns a tensor of the processor on the same memory, for kernels; `tensor` itself if it is not the accelerator's. It keeps the
// memory.
at::Tensor for_kernels(const at::Tensor& tensor);

// Allocations are called so until this ends.
class AllocationsAreOf {
 public:
  explicit AllocationsAreOf(const std::string& op);
  AllocationsAreOf(const AllocationsAreOf&) = delete;
  AllocationsAreOf& operator=(const AllocationsAreOf&) = delete;
  ~AllocationsAreOf();

 private:
  const std::string* before_;
};

// Returns which wait this is of those that the engine's code has: the places in it on the calling thread's stack, innermost
// first; empty if the caller is another. `kind` goes before them.
std::string engine_site(const char* kind);
// Whether a wait at `site` orders anything; notes it.
bool passes(const std::string& site);
// Returns what passes() was asked for since the last call. `left_out`: what orders nothing from now on, empty: all do.
std::vector<std::string> take_sites(const std::string& left_out);

}  // namespace gradweave::device
