#include "runtime/device_stopwatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <utility>

namespace gradweave::runtime {

std::int64_t DeviceStopwatch::now() {
  // Events of this kind keep the time.
  if (spare_.empty()) spare_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event& event = marks_.emplace_back(Mark{std::move(spare_.back())}).event.value();
  spare_.pop_back();
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return first_ + static_cast<std::int64_t>(marks_.size()) - 1;
}

std::int64_t DeviceStopwatch::between(std::int64_t begin, std::int64_t end) const {
  return std::llround(1e6 * event_of(begin).elapsedTime(event_of(end)));
}

void DeviceStopwatch::forget(std::int64_t moment) {
  if (moment == 0) return;
  Mark& mark = mark_of(moment);
  if (--mark.owners > 0) return;
  spare_.push_back(*std::exchange(mark.event, std::nullopt));
  for (; !marks_.empty() && !marks_.front().event; ++first_) marks_.pop_front();
}

std::unique_ptr<run::Stopwatch> stopwatch_of(c10::Device device) {
  if (device.is_cpu()) return std::make_unique<run::HostStopwatch>();
  return std::make_unique<DeviceStopwatch>(device);
}

}  // namespace gradweave::runtime
