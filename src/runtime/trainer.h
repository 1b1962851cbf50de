// Whose calls these are: the thread that trains, in the process that it began in, and the backward that it runs.
#pragma once

#include <atomic>
#include <optional>
#include <thread>

#include "runtime/fork.h"

namespace gradweave::runtime {

// Safe from any thread.
class Trainer {
 public:
  // The calling thread trains.
  void come() { thread_ = std::this_thread::get_id(); }
  bool is_here() const { return thread_.load() == std::this_thread::get_id(); }
  // Whether this is a process that was forked from the one that trains.
  bool is_elsewhere() const { return fork_generation() != generation_; }

  // A backward of that number will call back at its end; it has.
  void begin_backward(int task) { task_ = task; }
  void end_backward() { task_ = kNone; }
  std::optional<int> backward() const {
    const int task = task_;
    return task == kNone ? std::nullopt : std::optional(task);
  }

 private:
  static constexpr int kNone = -2;  // torch has -1 outside of a backward

  int generation_ = fork_generation();
  std::atomic<std::thread::id> thread_ = std::this_thread::get_id();
  std::atomic<int> task_ = kNone;
};

}  // namespace gradweave::runtime
