// The annotated mutex hands values between threads as std::mutex does.
#include "base/mutex.h"

#include <gtest/gtest.h>

#include <deque>
#include <thread>

namespace gradweave {
namespace {

class Queue {
 public:
  void push(int item) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    items_.push_back(item);
    filled_.notify_one();
  }
  int pop() EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    while (items_.empty()) filled_.wait(mutex_);
    const int item = items_.front();
    items_.pop_front();
    return item;
  }

 private:
  Mutex mutex_;
  CondVar filled_;
  std::deque<int> items_ GUARDED_BY(mutex_);
};

TEST(Mutex, HandsEachItemToOneThread) {
  constexpr int kItems = 2000;
  Queue queue;
  long first = 0, second = 0;
  std::thread one([&] {
    for (int i = 0; i < kItems / 2; ++i) first += queue.pop();
  });
  std::thread other([&] {
    for (int i = 0; i < kItems / 2; ++i) second += queue.pop();
  });
  for (int i = 0; i < kItems; ++i) queue.push(i);
  one.join();
  other.join();
  EXPECT_EQ(first + second, kItems * (kItems - 1L) / 2);
}

TEST(Mutex, IsFreeBetweenUnlockAndLock) {
  Mutex mutex;
  bool free_between = false;
  MutexLock lock(mutex);
  lock.unlock();
  if (mutex.try_lock()) {
    free_between = true;
    mutex.unlock();
  }
  lock.lock();
  EXPECT_TRUE(free_between);
  bool taken = false;
  std::thread([&] {
    if (mutex.try_lock()) {
      taken = true;
      mutex.unlock();
    }
  }).join();
  EXPECT_FALSE(taken);
}

TEST(Mutex, AWaitThatNobodyEndsIsOverInTime) {
  Mutex mutex;
  CondVar never;
  const MutexLock lock(mutex);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  while (never.wait_until(mutex, until)) {
  }
  EXPECT_GE(std::chrono::steady_clock::now(), until);
}

}  // namespace
}  // namespace gradweave
