#include "runtime/device_stopwatch.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>

namespace gradweave::runtime {

std::int64_t DeviceStopwatch::now() {
  // Events of this kind keep the time.
  if (used_ == marks_.size()) marks_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  marks_[used_++].record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return static_cast<std::int64_t>(used_);
}

void DeviceStopwatch::read(std::span<std::int64_t* const> moments) {
  if (!moments.empty()) at::accelerator::synchronizeDevice(device_.index());
  for (std::int64_t* const moment : moments) {
    const double ms = marks_.front().elapsedTime(marks_[static_cast<std::size_t>(*moment) - 1]);
    *moment = 1 + std::llround(1e6 * ms);  // 0: not passed
  }
  used_ = 0;
}

std::unique_ptr<run::Stopwatch> stopwatch_of(c10::Device device) {
  if (device.is_cpu()) return std::make_unique<run::HostStopwatch>();
  return std::make_unique<DeviceStopwatch>(device);
}

}  // namespace gradweave::runtime
