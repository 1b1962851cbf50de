// A mutex that clang's thread-safety analysis understands: which lock guards which member, and which function
// needs it, is written beside both and checked by `scripts/check tidy`. Other compilers see std::mutex.
//
//   Mutex mutex_;
//   std::deque<int> queue_ GUARDED_BY(mutex_);
//   CondVar filled_;
//   void push_locked(int item) REQUIRES(mutex_);
//
//   const MutexLock lock(mutex_);
//   while (queue_.empty()) filled_.wait(mutex_);
//
// A wait is a loop around its condition: the analysis does not look into a predicate's lambda.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define GRADWEAVE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define GRADWEAVE_THREAD_ANNOTATION(x)
#endif

// Of a member: read and written with the mutex held. PT_GUARDED_BY: what the pointer points to is.
#define GUARDED_BY(mutex) GRADWEAVE_THREAD_ANNOTATION(guarded_by(mutex))
#define PT_GUARDED_BY(mutex) GRADWEAVE_THREAD_ANNOTATION(pt_guarded_by(mutex))
// Of a function: the caller holds the mutexes, or holds none of them.
#define REQUIRES(...) GRADWEAVE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) GRADWEAVE_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
// Of a function: it returns with the mutexes held, or no longer held.
#define ACQUIRE(...) GRADWEAVE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) GRADWEAVE_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) GRADWEAVE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
// Of a function: from here on the analysis takes the mutex as held, as in a callback that is only called so.
#define ASSERT_CAPABILITY(x) GRADWEAVE_THREAD_ANNOTATION(assert_capability(x))
// Of a function that returns a reference to the mutex.
#define RETURN_CAPABILITY(x) GRADWEAVE_THREAD_ANNOTATION(lock_returned(x))
// Of a class: it is a lock, or holds one from its constructor to its destructor.
#define CAPABILITY(what) GRADWEAVE_THREAD_ANNOTATION(capability(what))
#define SCOPED_CAPABILITY GRADWEAVE_THREAD_ANNOTATION(scoped_lockable)
// Of a function: not analysed. Say why beside it.
#define NO_THREAD_SAFETY_ANALYSIS GRADWEAVE_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace gradweave {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  // Tells the analysis that the caller holds it.
  void assert_held() const ASSERT_CAPABILITY(this) {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds the mutex in its scope, but for what lies between unlock() and lock().
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() RELEASE() {
    mutex_.unlock();
    held_ = false;
  }
  void lock() ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// The caller of each wait holds `mutex`, the same in all waits that pass at one time, and holds it again when
// it returns. Wakes without a cause happen.
class CondVar {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    condition_.wait(held);
    held.release();
  }
  // Returns whether `until` has not passed yet.
  template <typename Clock, typename Duration>
  bool wait_until(Mutex& mutex, std::chrono::time_point<Clock, Duration> until) REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(held, until) == std::cv_status::no_timeout;
    held.release();
    return in_time;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace gradweave
