#include "device/device.h"

#include <algorithm>
#include <utility>

namespace gradweave::device {

namespace {

constexpr std::size_t kCapacity = std::size_t{16} << 30;  // of addresses

}  // namespace

Device& Device::get() {
  static Device& device = *new Device;  // tensors are freed until the process ends
  return device;
}

Device::Device() : arena_(kCapacity) {}

void* Device::allocate(std::size_t bytes, Stream stream, std::string name) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  void* const device = arena_.allocate(bytes);
  const auto begin = reinterpret_cast<std::uintptr_t>(device);
  order_.allocate({begin, begin + bytes}, stream, std::move(name));
  return device;
}

void Device::free(void* device) {
  if (device == nullptr) return;
  const std::lock_guard lock(mutex_);
  order_.free(reinterpret_cast<std::uintptr_t>(device));
  arena_.free(device);
}

void Device::used_on(const void* device, Stream stream) {
  const std::lock_guard lock(mutex_);
  order_.used_on(reinterpret_cast<std::uintptr_t>(device), stream);
}

std::size_t Device::allocated() const {
  const std::lock_guard lock(mutex_);
  return arena_.allocated();
}

Stream Device::new_stream() {
  const std::lock_guard lock(mutex_);
  return ++streams_;
}

void Device::launch(Stream stream, const Op& op, std::int64_t ns) {
  std::unique_lock lock(mutex_);
  order_.launch(stream, op);
  while (!moments_[stream].settled()) {  // another thread may add to it
    Moment before = moments_[stream];
    lock.unlock();
    before.settle();
    lock.lock();
  }
  Moment& moment = moments_[stream];
  moment.settle();
  moment.not_before(host_ns_);  // which launches it
  moment.pass(ns);
}

Device::Launched Device::launch_collective(Stream stream, const Op& op) {
  const std::lock_guard lock(mutex_);
  order_.launch(stream, op);
  Launched launched{.flight = std::make_shared<Flight>(op.name)};
  launched.start = std::exchange(moments_[stream], Moment());
  launched.start.not_before(host_ns_);
  moments_[stream].join(launched.flight);
  return launched;
}

void Device::spend(Stream stream, std::int64_t ns) { launch(stream, {.name = "compute"}, ns); }

Event Device::record(Stream stream) const {
  const std::lock_guard lock(mutex_);
  const auto moment = moments_.find(stream);
  return {.clock = order_.moment(stream), .moment = moment == moments_.end() ? Moment() : moment->second};
}

void Device::block(Stream stream, const Event& event, bool ordered) {
  const std::lock_guard lock(mutex_);
  if (!ordered) return moments_[stream].join_flights(event.moment);
  order_.wait(stream, event.clock);
  moments_[stream].join(event.moment);
}

void Device::wait(const Event& event) {
  const std::int64_t now = Moment(event.moment).settle();
  std::vector<Arrival> arrived;
  {
    const std::lock_guard lock(mutex_);
    ++host_waits_;
    order_.wait(kHost, event.clock);
    host_ns_ = std::max(host_ns_, now);
    const auto after = std::ranges::stable_partition(
        arrivals_, [&](const Arrival& arrival) { return event.clock[arrival.stream] < arrival.at; });
    arrived.assign(std::move_iterator(after.begin()), std::move_iterator(after.end()));
    arrivals_.erase(after.begin(), after.end());
  }
  for (const Arrival& arrival : arrived) arrival.arrives();
}

void Device::wait_for_all() {
  Event all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [stream, moment] : moments_) {
      all.clock.join(order_.moment(stream));
      all.moment.join(moment);
    }
  }
  wait(all);
}

void Device::on_host_wait(Stream stream, std::function<void()> arrives) {
  const std::lock_guard lock(mutex_);
  arrivals_.push_back({stream, order_.moment(stream)[stream], std::move(arrives)});
}

bool Device::reached(const Event& event) const { return event.moment.settled(); }

std::int64_t Device::elapsed(Event begin, Event end) { return end.moment.settle() - begin.moment.settle(); }

std::vector<std::string> Device::take_reports() {
  const std::lock_guard lock(mutex_);
  return order_.take_reports();
}

std::int64_t Device::host_waits() const {
  const std::lock_guard lock(mutex_);
  return host_waits_;
}

}  // namespace gradweave::device
