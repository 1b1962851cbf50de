#include "runtime/device_stopwatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <utility>

namespace gradweave::runtime {

std::int64_t DeviceStopwatch::now() {
  // Events of this kind keep the time.
  if (spare_.empty()) spare_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  events_.emplace_back(std::move(spare_.back()));
  spare_.pop_back();
  events_.back()->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return first_ + static_cast<std::int64_t>(events_.size()) - 1;
}

std::int64_t DeviceStopwatch::between(std::int64_t begin, std::int64_t end) const {
  return std::llround(1e6 * event_of(begin).elapsedTime(event_of(end)));
}

void DeviceStopwatch::forget(std::int64_t moment) {
  if (moment == 0) return;
  std::optional<c10::Event>& event = events_[static_cast<std::size_t>(moment - first_)];
  spare_.push_back(*std::exchange(event, std::nullopt));
  for (; !events_.empty() && !events_.front(); ++first_) events_.pop_front();
}

std::unique_ptr<run::Stopwatch> stopwatch_of(c10::Device device) {
  if (device.is_cpu()) return std::make_unique<run::HostStopwatch>();
  return std::make_unique<DeviceStopwatch>(device);
}

}  // namespace gradweave::runtime
