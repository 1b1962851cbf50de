// What tells when compute passes its points: the host's clock, or an accelerator's own.
#pragma once

#include <chrono>
#include <cstdint>

namespace gradweave::run {

using Clock = std::chrono::steady_clock;

// Returns the time as timelines have it.
inline std::int64_t ns_of(Clock::time_point time) {
  return time.time_since_epoch() / std::chrono::nanoseconds(1);
}

// From one moment to another; 0: none.
struct Stretch {
  std::int64_t begin = 0, end = 0;
};

// Moments are numbers above 0 that grow; they stand for times that may be known only later. Of one thread.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;

  // Whether the host runs ahead: moments are a device's, which the host need not wait for.
  virtual bool of_device() const = 0;
  // Returns this moment of what the calling thread gives to do.
  virtual std::int64_t now() = 0;
  // Whether its time is known.
  virtual bool passed(std::int64_t moment) const = 0;
  // Returns once it is.
  virtual void await(std::int64_t moment) const = 0;
  // Returns the time between two moments that have passed, ns.
  virtual std::int64_t between(std::int64_t begin, std::int64_t end) const = 0;
  // The moment is not asked for again; 0: none. One that was shared is to be forgotten once more.
  virtual void forget(std::int64_t moment) = 0;
  virtual void share(std::int64_t moment) = 0;
};

class HostStopwatch final : public Stopwatch {
 public:
  bool of_device() const override { return false; }
  std::int64_t now() override { return ns_of(Clock::now()); }
  bool passed(std::int64_t /*moment*/) const override { return true; }
  void await(std::int64_t /*moment*/) const override {}
  std::int64_t between(std::int64_t begin, std::int64_t end) const override { return end - begin; }
  void forget(std::int64_t /*moment*/) override {}
  void share(std::int64_t /*moment*/) override {}
};

}  // namespace gradweave::run
