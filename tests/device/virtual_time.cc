#include "device/virtual_time.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace gradweave::device {

std::int64_t end_of(std::span<const std::int64_t> arrivals, const Cost& cost, std::int64_t bytes) {
  return std::ranges::max(arrivals) +
         std::llround(cost.startup_ns + cost.ns_per_byte * static_cast<double>(bytes));
}

void Flight::land(std::int64_t end_ns) {
  {
    const std::lock_guard lock(mutex_);
    end_ns_ = end_ns;
  }
  changed_.notify_all();
}

void Flight::fail(std::string why) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(why);
  }
  changed_.notify_all();
}

bool Flight::ended() const {
  const std::lock_guard lock(mutex_);
  return end_ns_ || failure_;
}

std::int64_t Flight::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return end_ns_ || failure_; });
  if (failure_) throw std::runtime_error(name_ + ": " + *failure_);
  return *end_ns_;
}

void Moment::join(const Moment& other) {
  ns_ = std::max(ns_, other.ns_);
  join_flights(other);
}

void Moment::join_flights(const Moment& other) {
  for (const auto& flight : other.flights_)
    if (std::ranges::find(flights_, flight) == flights_.end()) flights_.push_back(flight);
}

std::int64_t Moment::settle() {
  for (const auto& flight : flights_) ns_ = std::max(ns_, flight->wait());
  flights_.clear();
  return ns_;
}

bool Moment::settled() const {
  return std::ranges::all_of(flights_, [](const auto& flight) { return flight->ended(); });
}

}  // namespace gradweave::device
