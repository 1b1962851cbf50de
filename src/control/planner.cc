#include "control/planner.h"

#include <sys/resource.h>

#include <string>
#include <utility>

namespace gradweave::control {
namespace {

constexpr int kNice = 10;  // a tenth of a processor where others want all of it

}  // namespace

Planner::~Planner() { close(); }

void Planner::take_in(Decision decision) {
  const MutexLock lock(mutex_);
  made_ = std::move(decision);
  done_ = true;
}

void Planner::start(std::function<Decision()> make) {
  {
    const MutexLock lock(mutex_);
    done_ = false;
    made_.reset();
  }
  if (thread_.joinable()) thread_.join();
  thread_ = Thread(
      [this, make = std::move(make)] {
        setpriority(PRIO_PROCESS, 0, kNice);  // of this thread alone, on Linux
        take_in(make());
      },
      [this](const std::string& why) { take_in({.error = why}); });
}

bool Planner::busy() const {
  const MutexLock lock(mutex_);
  return !done_;
}

std::optional<Decision> Planner::take() {
  const MutexLock lock(mutex_);
  return std::exchange(made_, std::nullopt);
}

void Planner::close() {
  if (thread_.joinable()) thread_.join();
  const MutexLock lock(mutex_);
  made_.reset();
}

}  // namespace gradweave::control
