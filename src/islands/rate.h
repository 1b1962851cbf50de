// How fast a peer is, as measured on what is sent to it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace gradweave::islands {

class MeasuredRate {
 public:
  using Time = std::chrono::nanoseconds;  // of a steady clock

  // Says how many bytes had been acknowledged in all by `now`, and whether more are on their way.
  void note(Time now, std::uint64_t acknowledged, bool more_on_way);
  void round_trip(Time time) { round_trip_ = round_trip_ ? (7 * *round_trip_ + time) / 8 : time; }

  // Returns the seconds that a message of `bytes` takes from here to there and its acknowledgement back; nothing before
  // enough was sent.
  std::optional<double> seconds_for(std::uint64_t bytes) const;

 private:
  struct Window {
    Time since;
    std::uint64_t acknowledged;
  };
  std::optional<Window> window_;
  std::optional<double> bytes_per_second_;
  std::optional<Time> round_trip_;
};

}  // namespace gradweave::islands
