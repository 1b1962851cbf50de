// How long the layers of the last iterations took on this rank. It knows no plan: the engine's timer has one, and so has a
// profile of a loop without an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradweave/workload.h"
#include "run/stopwatch.h"

namespace gradweave::run {

inline constexpr std::int64_t kMostKept = 16;  // iterations, unless more are profiled

// What the layers of an iteration take, without waits and updates outside of step(), and what else it takes.
struct LayerTimes {
  std::vector<double> forward_ns, backward_ns;
  double rest_ns = 0;
  bool every_layer = false;  // was started in each of the iterations, of which there is one at least
};

// Returns the workload with these times.
Workload timed(Workload workload, const LayerTimes& times);

// Of one thread. Makes no memory but in reset() and begin_profile().
class LayerTimer {
 public:
  // It runs all the time if the stopwatch is cheap, else while it profiles.
  explicit LayerTimer(std::unique_ptr<Stopwatch> stopwatch)
      : stopwatch_(std::move(stopwatch)), on_(stopwatch_->cheap()) {}

  // Forgets all; for so many layers.
  void reset(std::size_t layers);
  // An iteration begins here, and the one that is under way is forgotten.
  void begin_iteration();

  // What has just taken `ns` was not compute.
  void leave_out(std::int64_t ns) { left_out_ += stopwatch_->leave_out(ns); }

  // ---- points of an iteration

  // Of several passes of an iteration, whose gradients are accumulated, the first forward counts and the last backward: what
  // lies between is compute of the last layer's forward.
  void forward_begins();
  void layer_started(std::int32_t layer);
  // Returns whether one begins: at several outputs, the first counts.
  bool backward_begins();
  // A gradient of the layer is complete, perhaps the last.
  void gradient_came(std::int32_t layer);
  void backward_ended();
  // Returns whether it is kept: it had a forward and a backward, and it began here.
  bool iteration_ended();

  // ---- what is known

  // An iteration that is kept; times in ns.
  struct Row {
    std::int64_t iteration = 0, forward = 0;
    bool every_layer = false;                           // was started
    std::vector<std::int64_t> layer_forward, backward;  // by layer
  };
  std::int64_t kept() const { return kept_; }  // iterations since the reset, the last of them as rows
  // The caller owes n in [kept() - kMostKept, kept()).
  const Row& row(std::int64_t n) const { return rows_[static_cast<std::size_t>(n) % rows_.size()]; }

  // Profiles at most so many iterations from now on. Forgets those before.
  void begin_profile(std::int64_t iterations);
  // Returns medians of those that were kept, scaled so that they add up to the median iteration's, 0 without any. What lies
  // between two layers counts to the first of them, what is before the first layer or after the last gradient to these.
  LayerTimes end_profile();

 private:
  void mark(std::int64_t& moment) {
    if (on_) moment = stopwatch_->now();
  }
  void read();

  std::unique_ptr<Stopwatch> stopwatch_;
  bool on_;
  std::vector<Row> rows_;
  std::int64_t kept_ = 0;
  // Moments of this iteration, 0: not passed.
  std::int64_t begin_ = 0, forward_begin_ = 0, backward_begin_ = 0, backward_end_ = 0, end_ = 0;
  std::vector<std::int64_t> layer_start_, layer_end_;
  bool in_backward_ = false;
  std::int64_t left_out_ = 0;
  std::vector<std::int64_t*> passed_;  // for read()
};

}  // namespace gradweave::run
