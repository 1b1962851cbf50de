// A stopwatch that tests wind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "run/stopwatch.h"

namespace gradweave::run {

// Tells what the test says, by numbers that stand for moments where it is a device's.
struct FakeStopwatch : Stopwatch {
  explicit FakeStopwatch(bool device) : device(device) {}

  bool of_device() const override { return device; }
  std::int64_t now() override {
    moments.emplace(++last, time);
    return device ? last : time;
  }
  bool passed(std::int64_t moment) const override {
    return !device || moment <= awaited || last - moment >= ahead;
  }
  void await(std::int64_t moment) const override { awaited = std::max(awaited, moment); }
  std::int64_t between(std::int64_t begin, std::int64_t end) const override {
    return device ? moments.at(end) - moments.at(begin) : end - begin;
  }
  void forget(std::int64_t moment) override {
    if (const auto other = shared.find(moment); other != shared.end()) {
      shared.erase(other);
    } else {
      moments.erase(moment);
    }
  }
  void share(std::int64_t moment) override { shared.insert(moment); }

  bool device;
  std::int64_t time = 100, last = 0;
  std::int64_t ahead = 0;  // the device has passed all but the last so many moments
  mutable std::int64_t awaited = 0;
  std::map<std::int64_t, std::int64_t> moments;
  std::multiset<std::int64_t> shared;  // once for each owner more than one
};

}  // namespace gradweave::run
