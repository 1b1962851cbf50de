#include "runtime/device_watch.h"

#include <exception>
#include <thread>
#include <utility>

namespace gradweave::runtime {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(200);
constexpr auto kComesByItself = std::chrono::milliseconds(500);

c10d::ErrorType error_of(c10d::Backend& backend) {
  try {
    return backend.getError();
  } catch (const std::exception&) {
    return c10d::ErrorType::SUCCESS;
  }
}

}  // namespace

DeviceBackends::DeviceBackends(const std::vector<LinkSpec>& links, c10::Device device) {
  for (const LinkSpec& link : links) {
    if (!device.is_cpu() && link.group && backend_of(*link.group, device).ordered_launches)
      all_.push_back({link.name, link.group->getBackend(device.type())});
  }
}

DeviceBackends::Failure DeviceBackends::failure() const {
  for (const auto& [link, backend] : all_) {
    const c10d::ErrorType error = error_of(*backend);
    if (error == c10d::ErrorType::SUCCESS) continue;
    const bool overdue = error == c10d::ErrorType::TIMEOUT;
    return {.link = link,
            .overdue = overdue,
            .cause = backend->getBackendName() +
                     (overdue ? ": an op has not ended within its timeout" : " has lost its connection")};
  }
  return {};
}

void DeviceBackends::set_interrupt(Interrupt interrupt) {
  auto next = interrupt ? std::make_shared<const Interrupt>(std::move(interrupt)) : nullptr;
  const MutexLock lock(mutex_);
  interrupt_.swap(next);
}

void DeviceBackends::end(const std::string& verdict, const std::function<bool()>& told) const {
  const auto until = std::chrono::steady_clock::now() + kComesByItself;
  while (!told() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(kComesByItself / 20);
  if (!told()) {
    std::shared_ptr<const Interrupt> interrupt;
    {
      const MutexLock lock(mutex_);
      interrupt = interrupt_;
    }
    if (!interrupt) return;
    (*interrupt)(verdict);
  }
  for (const auto& [link, backend] : all_) {
    try {
      backend->abort();
    } catch (const std::exception&) {  // training has ended, and says why
    }
  }
}

DeviceWatch::DeviceWatch(std::shared_ptr<DeviceBackends> backends, std::chrono::milliseconds timeout,
                         const GiveUp& give_up)
    : thread_(
          [this, backends = std::move(backends), timeout, give_up] { watch(*backends, timeout, give_up); },
          [give_up](const std::string& why) { give_up("the watch of the accelerator's links", {}, why); }) {}

DeviceWatch::~DeviceWatch() {
  const MutexLock lock(mutex_);
  stop_ = true;
  stopped_.notify_all();
}

void DeviceWatch::watch(const DeviceBackends& backends, std::chrono::milliseconds timeout,
                        const GiveUp& give_up) {
  MutexLock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    const DeviceBackends::Failure failure = backends.failure();
    if (!failure.link.empty()) {
      return give_up("communication on link " + failure.link,
                     failure.overdue ? timeout : std::chrono::milliseconds(0), failure.cause);
    }
    lock.lock();
    if (!stop_) stopped_.wait_until(mutex_, std::chrono::steady_clock::now() + kBetweenLooks);
  }
}

}  // namespace gradweave::runtime
