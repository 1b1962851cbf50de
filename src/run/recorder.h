// What is noted of compute: counts, times of the last iterations, and, if asked for, a timeline.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradweave/timeline.h"
#include "run/archive.h"
#include "run/compute_thread.h"
#include "run/iteration_timer.h"
#include "run/op_queue.h"

namespace gradweave::run {

struct Counters {
  std::int64_t iterations = 0, updates = 0;
  std::int64_t ops = 0, bytes = 0;
  std::int64_t exposed_ns = 0, waits = 0;
};

// Iterations are the run's, but for those of ops and updates, which are the plan's. Makes no memory without a timeline.
class Recorder {
 public:
  explicit Recorder(std::unique_ptr<Stopwatch> stopwatch = std::make_unique<HostStopwatch>())
      : timer_(std::move(stopwatch)) {}

  // A plan comes into force, or begins anew. The plan must outlive what follows.
  void install(const RunPlan& plan) REQUIRES(compute_thread) { timer_.install(plan); }
  void restart() REQUIRES(compute_thread);

  // Takes the points of forward and backward, and profiles.
  LayerTimer& layers() REQUIRES(compute_thread) { return timer_.layers(); }
  // `goes_on`: for the caller, whose gradients accumulate.
  void iteration_ended(bool goes_on) REQUIRES(compute_thread);
  // The times of an iteration's ops, in list order, 0 for those that were not run.
  void ops_ended(std::int64_t iteration, std::span<const std::int64_t> ns) REQUIRES(compute_thread) {
    timer_.ops_ended(iteration, ns);
  }
  // The optimizer has stepped in `iteration`. An update has as many steps as the plan has parts.
  void stepped(std::int64_t iteration) REQUIRES(compute_thread);
  // The host has waited: in `layer`, or in none (-1). `span`: the op, which is described for a timeline only.
  template <typename Describe>
  void waited(const Waited& wait, Span span, Describe describe) REQUIRES(compute_thread) {
    count_wait(wait);
    if (!recording_) return;
    span.begin_ns = ns_of(wait.begin);
    span.end_ns = ns_of(wait.end);
    span.reason = describe();
    spans_.push_back(std::move(span));
    span_begin_ = wait.end;
  }
  // On a device compute waits where the host goes on: from the moment that before_wait() returned, 0 elsewhere, until now.
  std::int64_t before_wait() REQUIRES(compute_thread) { return of_device() ? stopwatch().now() : 0; }
  void device_waited(std::int64_t begin) REQUIRES(compute_thread) {
    if (begin != 0) layers().waited(begin, stopwatch().now());
  }
  // An update outside of step() begins now; one began at `begin` and ends now: it is not compute's.
  std::int64_t before_update() REQUIRES(compute_thread) { return stopwatch().now(); }
  void update_ended(std::int64_t begin) REQUIRES(compute_thread) { layers().leave_out(begin); }
  // Op number `place` of an iteration ran in this stretch of a device.
  void op_ran(std::int64_t iteration, std::int32_t place, Stretch stretch) REQUIRES(compute_thread) {
    timer_.op_ran(iteration, place, stretch);
  }
  Stopwatch& stopwatch() REQUIRES(compute_thread) { return layers().stopwatch(); }

  // For a timeline: what compute does from now on, or has done since then.
  void begin_span() REQUIRES(compute_thread) {
    if (recording_) span_begin_ = Clock::now();
  }
  void end_span(SpanKind kind, std::int64_t iteration, std::int32_t layer) REQUIRES(compute_thread);
  void set_timeline(bool on) REQUIRES(compute_thread);
  // Returns what was recorded since the last call, in no order and without labels of layers.
  std::vector<Span> take_spans() REQUIRES(compute_thread) { return std::exchange(spans_, {}); }

  // Without those of ops. Of a device the exposed communication is that of iterations whose times are known.
  Counters counters() const REQUIRES(compute_thread);
  IterationTimer& timer() REQUIRES(compute_thread) { return timer_; }

  // In the parts that a checkpoint has had from the beginning.
  void archive_updated(Archive& archive) REQUIRES(compute_thread) { archive(updated_); }
  void archive_counters(Archive& archive) REQUIRES(compute_thread) {
    archive(counters_.iterations);
    archive(counters_.updates);
  }

 private:
  bool of_device() const REQUIRES(compute_thread) { return timer_.layers().stopwatch().of_device(); }
  void count_wait(const Waited& wait) REQUIRES(compute_thread);

  Counters counters_ GUARDED_BY(compute_thread);
  IterationTimer timer_ GUARDED_BY(compute_thread);
  std::int64_t updated_ GUARDED_BY(compute_thread) = -1;  // the last iteration that is counted as an update
  bool recording_ GUARDED_BY(compute_thread) = false;
  std::vector<Span> spans_ GUARDED_BY(compute_thread);
  Clock::time_point span_begin_ GUARDED_BY(compute_thread);
};

}  // namespace gradweave::run
