// How long the layers of the last iterations took on this rank. It knows no plan: the engine's timer has one, and so has a
// profile of a loop without an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gradweave/workload.h"
#include "run/stopwatch.h"

namespace gradweave::run {

inline constexpr std::int64_t kMostKept = 16;  // iterations, unless more are profiled
// Iterations that a host may be ahead of its device: of more, some are not timed.
inline constexpr std::int64_t kMostAhead = 16;

// What the layers of an iteration take, without waits and updates outside of step(), and what else it takes, without waits.
struct LayerTimes {
  std::vector<double> forward_ns, backward_ns;
  double rest_ns = 0;
  bool every_layer = false;  // was started in each of the iterations, of which there is one at least
  std::int64_t iterations = 0;
};

// Returns the workload with these times.
Workload timed(Workload workload, const LayerTimes& times);

// Of one thread. Waits for no device but in await_all() and end_profile(). Makes no memory but in reset() and begin_profile(), and until
// as many moments have been kept as there ever are.
class LayerTimer {
 public:
  explicit LayerTimer(std::unique_ptr<Stopwatch> stopwatch) : stopwatch_(std::move(stopwatch)) {}

  // Forgets all; for so many layers.
  void reset(std::size_t layers);

  // ---- points of an iteration

  // An iteration begins here, and the one that is under way is forgotten.
  void begin_iteration();
  // Of several passes of an iteration, whose gradients are accumulated, the first forward counts and the last backward: what
  // lies between is compute of the last layer's forward.
  void forward_begins();
  void layer_started(std::int32_t layer);
  // Returns whether one begins: at several outputs, the first counts.
  bool backward_begins();
  // A gradient of the layer is complete, perhaps the last.
  void gradient_came(std::int32_t layer);
  void backward_ended();
  // What has taken from `begin` until now was not compute.
  void leave_out(std::int64_t begin) { here().left_out.push_back({begin, stopwatch_->now()}); }
  // From `begin` to `end` compute has waited.
  void waited(std::int64_t begin, std::int64_t end) { here().waits.push_back({begin, end}); }
  // Returns whether it is kept: it had a forward and a backward, and it began here.
  bool iteration_ended();

  // ---- what is known

  Stopwatch& stopwatch() { return *stopwatch_; }
  const Stopwatch& stopwatch() const { return *stopwatch_; }
  // Returns the waits of all iterations whose times were ever known, ns.
  std::int64_t exposed_ns() const { return exposed_; }
  // Waits until the times of all iterations that have ended are known.
  void await_all();

  // An iteration that was kept; times in ns.
  struct Row {
    std::int64_t iteration = 0, forward = 0, exposed = 0;
    std::int64_t before = 0;                            // of the iteration, until the forward begins
    bool every_layer = false;                           // was started
    std::vector<std::int64_t> layer_forward, backward;  // by layer
  };
  // Iterations since the reset that were kept; and those of them whose times are known, the last of them as rows.
  std::int64_t ended() const { return ended_; }
  std::int64_t known() const { return known_; }
  // The caller owes n in [known() - kMostKept, known()).
  const Row& row(std::int64_t n) const { return rows_[static_cast<std::size_t>(n) % rows_.size()]; }

  // Profiles at most so many iterations from now on. Forgets those before.
  void begin_profile(std::int64_t iterations);
  // Returns medians of those that were kept, scaled so that they add up to the median iteration's, 0 without any. What lies
  // between two layers counts to the first of them, what is before the first layer or after the last gradient to these.
  LayerTimes end_profile();

 private:
  // Of one iteration; 0: not passed.
  struct Moments {
    std::int64_t begin = 0, forward = 0, backward = 0, backward_end = 0, end = 0;
    std::vector<std::int64_t> layer_start, layer_end;
    std::vector<Stretch> left_out, waits;
  };

  Moments& here() { return moments_[static_cast<std::size_t>(ended_) % moments_.size()]; }
  void mark(std::int64_t& moment) {
    stopwatch_->forget(moment);
    moment = stopwatch_->now();
  }
  void clear(std::int64_t& moment) { stopwatch_->forget(std::exchange(moment, 0)); }
  void forget(Moments& moments);
  void forget_all();
  void learn();
  void learn(const Moments& moments, Row& row);

  std::unique_ptr<Stopwatch> stopwatch_;
  std::vector<Row> rows_;
  std::vector<Moments> moments_;                                 // of [known_, ended_], the last under way
  std::vector<std::pair<std::int64_t, std::int64_t>> left_out_;  // scratch: until a moment, so many ns
  std::int64_t known_ = 0, ended_ = 0, exposed_ = 0;
  bool in_backward_ = false;
};

}  // namespace gradweave::run
