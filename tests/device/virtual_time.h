// Time that passes only where a model says so: clocks of streams in nanoseconds, and of collectives, which begin when the last
// rank comes. Nothing sleeps.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gradweave::device {

// What one collective takes: so much to start, and so much for each byte.
struct Cost {
  double startup_ns = 0, ns_per_byte = 0;
};

// Returns when a collective on `bytes` ends for all ranks, each of which comes to it at one of `arrivals` (at least one). Rounded
// to the nearest nanosecond.
std::int64_t end_of(std::span<const std::int64_t> arrivals, const Cost& cost, std::int64_t bytes);

// A collective that this rank has launched. Whoever carries it out says once how it ended; any thread may wait.
class Flight {
 public:
  explicit Flight(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  void land(std::int64_t end_ns);
  void fail(std::string why);
  bool ended() const;
  // Blocks the calling thread. Returns when it ended. Errors: std::runtime_error, if it failed.
  std::int64_t wait() const;

 private:
  const std::string name_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<std::int64_t> end_ns_;
  std::optional<std::string> failure_;
};

// A moment of a stream: so late at least, and not before these have ended.
class Moment {
 public:
  void join(const Moment& other);
  // Not before the flights of `other` have ended.
  void join_flights(const Moment& other);
  void join(std::shared_ptr<const Flight> flight) { flights_.push_back(std::move(flight)); }
  // `ns` pass. Flights that are not waited for must be none.
  void pass(std::int64_t ns) { ns_ += ns; }
  void not_before(std::int64_t ns) { ns_ = std::max(ns_, ns); }
  // Blocks the calling thread until all flights have ended. Returns when it is. Errors: std::runtime_error of a flight that
  // failed, each time.
  std::int64_t settle();
  // Returns whether settle() would not block.
  bool settled() const;

 private:
  std::int64_t ns_ = 0;
  std::vector<std::shared_ptr<const Flight>> flights_;
};

}  // namespace gradweave::device
