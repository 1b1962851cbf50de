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
  // The host has waited. `span`: returns the wait's, without its times, for a timeline only.
  template <typename MakeSpan>
  void waited(const Waited& wait, MakeSpan span) REQUIRES(compute_thread) {
    ++counters_.waits;
    if (of_device()) return;  // which may have been busy meanwhile
    const Stretch stretch{ns_of(wait.begin), ns_of(wait.end)};
    counters_.exposed_ns += stretch.end - stretch.begin;
    note_wait(stretch, span);
  }
  // On a device compute waits where the host goes on: from the moment that before_wait() returned, 0 elsewhere, until now.
  std::int64_t before_wait() REQUIRES(compute_thread) { return of_device() ? stopwatch().now() : 0; }
  template <typename MakeSpan>
  void device_waited(std::int64_t begin, MakeSpan span) REQUIRES(compute_thread) {
    if (begin != 0) note_wait({begin, stopwatch().now()}, span);
  }
  // An update outside of step() begins now; one began at `begin` and ends now: it is not compute's.
  std::int64_t before_update() REQUIRES(compute_thread) { return stopwatch().now(); }
  void update_ended(std::int64_t begin) REQUIRES(compute_thread) { layers().leave_out(begin); }
  // The op ran in this stretch of a device.
  void op_ran(const Execution& execution, Stretch stretch) REQUIRES(compute_thread);
  Stopwatch& stopwatch() REQUIRES(compute_thread) { return layers().stopwatch(); }

  // For a timeline: what compute does from now on, or has done since then.
  void begin_span() REQUIRES(compute_thread) {
    if (recording_) begin_span_at(stopwatch().now());
  }
  void end_span(SpanKind kind, std::int64_t iteration, std::int32_t layer) REQUIRES(compute_thread);
  // Waits for a device, once, so that its times are also the host's from then on.
  void set_timeline(bool on) REQUIRES(compute_thread);
  // Returns what was recorded since the last call, in no order and without labels of layers. Waits for a device.
  std::vector<Span> take_spans() REQUIRES(compute_thread);

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
  template <typename MakeSpan>
  void note_wait(Stretch stretch, MakeSpan span) REQUIRES(compute_thread) {
    layers().waited(stretch.begin, stretch.end);
    if (!recording_) return;
    add(span(), stretch);
    stopwatch().share(stretch.end);
    begin_span_at(stretch.end);
  }
  void begin_span_at(std::int64_t moment) REQUIRES(compute_thread) {
    stopwatch().forget(std::exchange(span_begin_, moment));
  }
  void add(Span span, Stretch stretch) REQUIRES(compute_thread);
  void learn(bool wait) REQUIRES(compute_thread);

  Counters counters_ GUARDED_BY(compute_thread);
  IterationTimer timer_ GUARDED_BY(compute_thread);
  std::int64_t updated_ GUARDED_BY(compute_thread) = -1;  // the last iteration that is counted as an update
  bool recording_ GUARDED_BY(compute_thread) = false;
  std::vector<Span> spans_ GUARDED_BY(compute_thread);
  std::vector<Span> unknown_ GUARDED_BY(compute_thread);  // with moments in the place of times
  std::int64_t span_begin_ GUARDED_BY(compute_thread) = 0;
  std::int64_t origin_ GUARDED_BY(compute_thread) = 0, origin_ns_ GUARDED_BY(compute_thread) = 0;
};

}  // namespace gradweave::run
