#include "run/recorder.h"

#include <utility>

namespace gradweave::run {

void Recorder::restart() {
  timer_.restart();
  updated_ = -1;
}

void Recorder::iteration_ended(bool goes_on) {
  ++counters_.iterations;
  if (!goes_on) layers().iteration_ended();
  learn(/*wait=*/false);
}

void Recorder::stepped(std::int64_t iteration) {
  if (updated_ != iteration) ++counters_.updates;
  updated_ = iteration;
}

Counters Recorder::counters() const {
  Counters counters = counters_;
  if (of_device()) counters.exposed_ns = timer_.layers().exposed_ns();
  return counters;
}

void Recorder::op_ran(const Execution& execution, Stretch stretch) {
  timer_.op_ran(execution.iteration, execution.place, stretch);
  if (recording_ && of_device()) add(span_of(execution), stretch);
}

void Recorder::end_span(SpanKind kind, std::int64_t iteration, std::int32_t layer) {
  if (!recording_) return;
  const std::int64_t now = stopwatch().now();
  add({.kind = kind, .iteration = iteration, .layer = layer}, {span_begin_, now});
  begin_span_at(now);
}

void Recorder::set_timeline(bool on) {
  learn(/*wait=*/true);
  recording_ = on;
  if (!on) return;
  begin_span_at(stopwatch().now());
  stopwatch().forget(std::exchange(origin_, stopwatch().now()));
  stopwatch().await(origin_);
  origin_ns_ = of_device() ? ns_of(Clock::now()) : origin_;
}

std::vector<Span> Recorder::take_spans() {
  learn(/*wait=*/true);
  return std::exchange(spans_, {});
}

// The stretch has another owner too.
void Recorder::add(Span span, Stretch stretch) {
  stopwatch().share(stretch.begin);
  stopwatch().share(stretch.end);
  span.begin_ns = stretch.begin;
  span.end_ns = stretch.end;
  unknown_.push_back(std::move(span));
}

// Spans whose times are known now, or all.
void Recorder::learn(bool wait) {
  const auto is_known = [&](std::int64_t moment) REQUIRES(compute_thread) {
    if (wait) stopwatch().await(moment);
    return stopwatch().passed(moment);
  };
  std::size_t known = 0;
  for (; known < unknown_.size(); ++known) {
    Span& span = unknown_[known];
    if (!is_known(span.begin_ns) || !is_known(span.end_ns)) break;
    for (Nanoseconds* time : {&span.begin_ns, &span.end_ns}) {
      const std::int64_t moment = std::exchange(*time, origin_ns_ + stopwatch().between(origin_, *time));
      stopwatch().forget(moment);
    }
    // On a device compute passes the place where it would wait.
    const bool passed = of_device() && span.kind == SpanKind::kWait && span.begin_ns == span.end_ns;
    if (!passed) spans_.push_back(std::move(span));
  }
  unknown_.erase(unknown_.begin(), unknown_.begin() + static_cast<std::ptrdiff_t>(known));
}

}  // namespace gradweave::run
