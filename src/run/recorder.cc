#include "run/recorder.h"

namespace gradweave::run {

void Recorder::restart() {
  timer_.restart();
  updated_ = -1;
}

void Recorder::iteration_ended(bool goes_on) {
  ++counters_.iterations;
  if (!goes_on) timer_.iteration_ended();
}

void Recorder::stepped(std::int64_t iteration) {
  if (updated_ != iteration) ++counters_.updates;
  updated_ = iteration;
}

void Recorder::count_wait(std::int64_t exposed_ns) {
  counters_.exposed_ns += exposed_ns;
  ++counters_.waits;
  timer_.waited(exposed_ns);
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
