#include "run/recorder.h"

namespace gradweave::run {

void Recorder::restart() {
  timer_.restart();
  updated_ = -1;
}

void Recorder::iteration_ended(bool goes_on) {
  ++counters_.iterations;
  if (!goes_on) layers().iteration_ended();
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

void Recorder::count_wait(const Waited& wait) {
  ++counters_.waits;
  if (of_device()) return;  // which may have been busy meanwhile
  const std::int64_t begin = ns_of(wait.begin), end = ns_of(wait.end);
  counters_.exposed_ns += end - begin;
  layers().waited(begin, end);
}

void Recorder::end_span(SpanKind kind, std::int64_t iteration, std::int32_t layer) {
  if (!recording_) return;
  const auto now = Clock::now();
  spans_.push_back({.kind = kind,
                    .iteration = iteration,
                    .layer = layer,
                    .begin_ns = ns_of(span_begin_),
                    .end_ns = ns_of(now)});
  span_begin_ = now;
}

void Recorder::set_timeline(bool on) {
  recording_ = on;
  span_begin_ = Clock::now();
}

}  // namespace gradweave::run
