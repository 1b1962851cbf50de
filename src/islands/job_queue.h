// Work that one thread does for others, in the order in which it comes.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "base/mutex.h"

namespace gradweave::islands {

class JobQueue {
 public:
  // From any thread; doesn't wait. A job lets nothing out.
  void post(std::function<void()> job) {
    const MutexLock lock(mutex_);
    if (!closed_) jobs_.push_back(std::move(job));
    changed_.notify_one();
  }

  // Does what is posted, until close().
  void run() {
    while (auto job = next()) job();
  }

  // What has not begun is left out, and so is what is posted from now on.
  void close() {
    std::deque<std::function<void()>> left;  // what jobs own goes without the lock
    const MutexLock lock(mutex_);
    closed_ = true;
    left.swap(jobs_);
    changed_.notify_all();
  }

 private:
  std::function<void()> next() {
    const MutexLock lock(mutex_);
    while (jobs_.empty() && !closed_) changed_.wait(mutex_);
    if (closed_) return {};
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    return job;
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> jobs_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace gradweave::islands
