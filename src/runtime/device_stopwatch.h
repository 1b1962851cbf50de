// The stopwatch of parameters' device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "run/stopwatch.h"

namespace gradweave::runtime {

// Moments are those of an accelerator's streams, since the host runs ahead: marks on the stream that is current, whose times are
// known once the device has passed them.
class DeviceStopwatch final : public run::Stopwatch {
 public:
  explicit DeviceStopwatch(c10::Device device) : device_(device) {}

  bool cheap() const override { return false; }
  std::int64_t now() override;
  std::int64_t leave_out(std::int64_t /*ns*/) override { return 0; }  // it was the host that waited
  // Waits for the device.
  void read(std::span<std::int64_t* const> moments) override;

 private:
  c10::Device device_;
  std::vector<c10::Event> marks_;
  std::size_t used_ = 0;  // since the last read(); the others are to be used again
};

// Returns the stopwatch for compute on `device`.
std::unique_ptr<run::Stopwatch> stopwatch_of(c10::Device device);

}  // namespace gradweave::runtime
