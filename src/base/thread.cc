#include "base/thread.h"

#include <exception>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace gradweave {

struct Thread::End {
  Mutex mutex;
  CondVar came;
  bool there GUARDED_BY(mutex) = false;

  void come() {
    const MutexLock lock(mutex);
    there = true;
    came.notify_all();
  }
  bool wait_until(std::chrono::steady_clock::time_point until) {
    const MutexLock lock(mutex);
    while (!there && came.wait_until(mutex, until)) {
    }
    return there;
  }
};

namespace {

void call(const std::function<void()>& main, const std::function<void(const std::string&)>& failed) {
  std::string why;
  try {
    main();
    return;
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
    why = "an exception of an unknown kind";
  }
  failed(why);
}

struct GivenUp {
  Mutex mutex;
  std::vector<Thread> threads GUARDED_BY(mutex);
};

// Never destroyed: a thread in it may outlive everything.
GivenUp& aside() {
  static auto* const all = new GivenUp;
  return *all;
}

}  // namespace

Thread::Thread(std::function<void()> main, std::function<void(const std::string&)> failed)
    : end_(std::make_shared<End>()) {
  thread_ = std::thread([main = std::move(main), failed = std::move(failed), end = end_]() mutable {
    call(main, failed);
    main = nullptr;  // what they own goes before the end is told
    failed = nullptr;
    end->come();
  });
}

Thread::~Thread() { join(); }

Thread& Thread::operator=(Thread&& other) noexcept {
  join();
  thread_ = std::move(other.thread_);
  end_ = std::move(other.end_);
  return *this;
}

void Thread::join() {
  if (thread_.joinable()) thread_.join();
}

bool Thread::join_for(std::chrono::steady_clock::duration patience) {
  if (!thread_.joinable()) return true;
  if (!end_->wait_until(std::chrono::steady_clock::now() + patience)) return false;
  thread_.join();
  return true;
}

void Thread::give_up() {
  if (join_for({})) return;
  const MutexLock lock(aside().mutex);
  std::erase_if(aside().threads, [](Thread& each) { return each.join_for({}); });
  aside().threads.push_back(std::move(*this));
}

std::size_t Thread::given_up() {
  const MutexLock lock(aside().mutex);
  std::erase_if(aside().threads, [](Thread& each) { return each.join_for({}); });
  return aside().threads.size();
}

}  // namespace gradweave
