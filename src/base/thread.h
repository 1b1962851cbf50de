// A thread that tells when it fails, and that somebody owns for as long as it runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace gradweave {

class Thread {
 public:
  Thread() = default;
  // Starts `main`. What it lets out goes to `failed`, which the thread calls with its text, and ends no process. Errors:
  // std::system_error if there can be no more threads.
  Thread(std::function<void()> main, std::function<void(const std::string& why)> failed);
  // Waits until it has ended.
  ~Thread();
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept;

  // Whether it was started, and neither waited for nor given up.
  bool joinable() const { return thread_.joinable(); }
  // Waits until it has ended.
  void join();
  // Waits no longer than that; returns whether it has ended.
  bool join_for(std::chrono::steady_clock::duration patience);

  // Something that can't be interrupted may hold it for ever: it is put aside, with what it owns, and joined by the next
  // call after it has ended, if that comes.
  void give_up();
  // Returns how many that were given up have not ended. Joins the others.
  static std::size_t given_up();

 private:
  struct End;
  std::thread thread_;
  std::shared_ptr<End> end_;
};

}  // namespace gradweave
