// A link that is slower than the one that carries its messages: a model of its time, without burning CPU.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "gradweave/decimal.h"
#include "gradweave/plan.h"

namespace gradweave::runtime {

// May change at any time, for ops that are started from then on.
struct Emulation {
  void set(double startup, double per_byte) {
    startup_ns = std::llround(startup * 1000);
    us_per_byte = per_byte;
  }

  std::atomic<Nanoseconds> startup_ns = 0;
  std::atomic<double> us_per_byte = 0;
};

// Ops one after another, each as long as the model says; halves of an all-reduce take half.
class EmulatedLink {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit EmulatedLink(std::shared_ptr<const Emulation> model) : model_(std::move(model)) {}

  // Returns when an op that is started `now` ends at the earliest. A whole op has `half_startups` halves of an
  // all-reduce's start-up, two or what its compression needs.
  Time end_of(Collective collective, std::int64_t bytes, std::int64_t half_startups, Time now) {
    const double cost = (static_cast<double>(model_->startup_ns * half_startups) / 2 +
                         1000 * model_->us_per_byte * static_cast<double>(bytes)) *
                        (is_half(collective) ? 0.5 : 1.0);
    free_ = std::max(now, free_) + std::chrono::nanoseconds(static_cast<std::int64_t>(cost));
    return free_;
  }

 private:
  std::shared_ptr<const Emulation> model_;
  Time free_;  // when the op before ends
};

}  // namespace gradweave::runtime
