// What is noted of ops: counts, how long each took, a timeline if it is asked for, and what was done last.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "gradweave/timeline.h"
#include "run/execution.h"
#include "run/flight_recorder.h"

namespace gradweave::run {

struct OpCounters {
  std::int64_t ops = 0, bytes = 0;
};

// Returns the span of an op's execution, without its times.
Span span_of(const Execution& execution);

// Times are those of timelines.
class OpLog {
 public:
  OpLog(bool timeline, std::size_t flight_events) : timeline_(timeline), flight_(flight_events) {}

  // For a plan that comes into force, with so many executions alive at most.
  void install(const RunPlan& plan, std::size_t capacity) {
    notes_.assign(capacity, {});
    flight_.install(plan);
  }
  // Also takes points and waits.
  FlightRecorder& flight() { return flight_; }
  const FlightRecorder& flight() const { return flight_; }

  void open(std::span<const Execution> row) {
    for (const Execution& execution : row) notes_[execution.slot] = {};
  }
  void begun(const Execution& execution, std::int64_t now) {
    notes_[execution.slot].event = flight_.op_begins(execution, now);
  }
  // `spans`: a timeline has these times.
  void ended(const Execution& execution, std::int64_t begin, std::int64_t end, bool spans);
  // Writes how long each op of a row took, 0 for those that were not run.
  void times(std::span<const Execution> row, std::vector<std::int64_t>& ns) const;

  const OpCounters& counters() const { return counters_; }
  void set_timeline(bool on) { timeline_ = on; }
  // Returns what was recorded since the last call.
  std::vector<Span> take_spans() { return std::exchange(spans_, {}); }

 private:
  struct Note {
    std::int64_t ns = 0;     // from its start to its end
    std::int64_t event = 0;  // of the flight recorder
  };

  OpCounters counters_;
  std::vector<Note> notes_;  // by slot
  bool timeline_;
  std::vector<Span> spans_;
  FlightRecorder flight_;
};

}  // namespace gradweave::run
