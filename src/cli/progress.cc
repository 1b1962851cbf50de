#include "cli/progress.h"

#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <utility>

#include "cli/output.h"

namespace gradweave::cli {

Progress::Progress(const Outcome& outcome, std::string what) : what_(std::move(what)) {
  if (!outcome.quiet && is_terminal(standard_error()))
    thread_ = Thread([this] { show(); }, [](const std::string&) {});
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Progress::say(std::string what) {
  const MutexLock lock(mutex_);
  what_ = std::move(what);
}

void Progress::show() {
  using std::chrono::steady_clock;
  const steady_clock::time_point begin = steady_clock::now();
  int seconds = 0;
  const MutexLock lock(mutex_);
  while (!ended_) {
    if (changed_.wait_until(mutex_, begin + std::chrono::seconds(seconds + 1))) continue;
    ++seconds;
    std::cerr << fmt::format("\r\033[K{}: {} s", what_, seconds) << std::flush;
  }
  if (seconds > 0) std::cerr << "\r\033[K" << std::flush;
}

}  // namespace gradweave::cli
