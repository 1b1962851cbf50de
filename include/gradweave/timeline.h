// What happened when, simulated or measured: the same form from the simulator and from the engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gradweave/decimal.h"

namespace gradweave {

enum class SpanKind : std::uint8_t { kForward, kBackward, kOptimizer, kWait, kOp };

// One interval [begin_ns, end_ns) on a track. Tracks: 0 is compute, 1 + k is link k.
struct Span {
  SpanKind kind = SpanKind::kForward;
  std::int32_t track = 0;
  std::int64_t iteration = 0;
  std::int32_t layer = -1;  // forward, backward; a wait: the layer that waited, or -1 at the iteration's end
  std::int32_t op = -1;     // an op: its place in its iteration's list; a wait: the op that was waited for
  std::int32_t op_link = -1;  // a wait: the link of that op
  Nanoseconds begin_ns = 0;
  Nanoseconds end_ns = 0;
  std::int64_t bytes = 0;  // an op's
  std::string label;       // "conv1", "all_reduce conv1.weight[0:4096] +3"
  std::string reason;      // a wait: why compute waited, in words
  friend bool operator==(const Span&, const Span&) = default;
};

struct Timeline {
  std::string name;    // scheme or run
  std::string origin;  // "simulated", "measured", "measured, emulated link"
  std::vector<std::string> links;
  std::vector<Span> spans;  // sorted by (begin_ns, track, kind, iteration)
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

// Returns the timeline in the Chrome trace event form that Perfetto and chrome://tracing open: one process
// per timeline, one thread per track; times in microseconds. Several timelines stand side by side.
std::string to_chrome_trace(const std::vector<Timeline>& timelines);

// Returns the timelines as one self-contained SVG picture, under each other on a common time axis: compute
// above the links, waits hatched, details as tooltips. Ops that overlap on a link stand in lanes of their
// own.
std::string to_svg(const std::vector<Timeline>& timelines);

}  // namespace gradweave
