// What tells when compute passes its points: the host's clock, or an accelerator's own.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

namespace gradweave::run {

using Clock = std::chrono::steady_clock;

// Returns the time as timelines have it.
inline std::int64_t ns_of(Clock::time_point time) {
  return time.time_since_epoch() / std::chrono::nanoseconds(1);
}

class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  // Whether it may run all the time: reading it waits for nothing.
  virtual bool cheap() const = 0;
  // Returns what stands for this moment until read(), above 0.
  virtual std::int64_t now() = 0;
  // What has just taken `ns` was not compute: later moments come so much earlier. Returns how much was left out, ns.
  virtual std::int64_t leave_out(std::int64_t ns) = 0;
  // Makes moments since the last call times, ns. May wait until they have passed.
  virtual void read(std::span<std::int64_t* const> moments) = 0;
};

class HostStopwatch final : public Stopwatch {
 public:
  bool cheap() const override { return true; }
  std::int64_t now() override { return ns_of(Clock::now()) - left_out_; }
  std::int64_t leave_out(std::int64_t ns) override {
    left_out_ += ns;
    return ns;
  }
  void read(std::span<std::int64_t* const> /*moments*/) override {}  // they are times

 private:
  std::int64_t left_out_ = 0;
};

}  // namespace gradweave::run
