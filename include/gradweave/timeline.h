// What happened when, simulated or measured: the same form from the simulator and from the engine.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
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
  bool ended = true;       // false: it was under way at end_ns, when training stopped
  std::int64_t bytes = 0;  // an op's
  std::string label;       // "conv1", "all_reduce conv1.weight[0:4096] +3"
  std::string reason;      // a wait: why compute waited, in words
  friend bool operator==(const Span&, const Span&) = default;
};

// What a rank knew of another one when its training stopped.
struct HeardOf {
  std::int64_t rank = 0;
  std::string doing;       // "training iteration 7"
  std::int64_t ops = 0;    // that had ended there
  Nanoseconds ago_ns = 0;  // since its last sign of life
  friend bool operator==(const HeardOf&, const HeardOf&) = default;
};

// Why a rank's training stopped, of the timeline that it leaves then.
struct Stop {
  std::int64_t rank = 0, ranks = 1;
  std::string doing;           // what this rank did: "training iteration 7"
  std::string verdict;         // why training can't go on
  std::vector<HeardOf> heard;  // of the rank that reads the others' signs; else empty
  friend bool operator==(const Stop&, const Stop&) = default;
};

struct Timeline {
  std::string name;    // scheme or run
  std::string origin;  // "simulated", "measured", "measured, emulated link"
  std::vector<std::string> links;
  std::vector<Span> spans;  // sorted by (begin_ns, track, kind, iteration)
  std::optional<Stop> stop;
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

struct ExposedLayer {
  std::int32_t layer = 0;  // -1: at iteration_end
  double exposed_ns = 0;   // per iteration
  std::string reason;      // what was waited for most
};

// What a timeline shows of its iterations.
struct TimelineFigures {
  std::int64_t iterations = 0;                 // that compute begins in it
  double iteration_ns = 0;                     // mean time from one's begin to the next one's
  double exposed_ns = 0;                       // waits per iteration
  std::vector<ExposedLayer> exposed_layers;    // those with waits, in order
  std::map<std::int64_t, Nanoseconds> begins;  // of each iteration's first compute or wait
};

// Returns the figures; zeros of a timeline without compute. The last iteration's time is that from its begin to the
// end of its compute, and counts only where it is alone. O(spans log spans).
TimelineFigures figures_of(const Timeline& timeline);

// One kind of work, or one span in the mean of its iterations, in two timelines.
struct TimelineDifference {
  std::string what;  // "forward", "link eth busy", "backward conv1", "all_reduce conv1.weight on eth"
  // Nanoseconds per iteration; nothing where the timeline has no such span.
  std::optional<double> a_ns, b_ns;
};

// Where two timelines part first, counted from the begin of the first iteration of each.
struct TimelineParting {
  std::int64_t iteration = 0;  // from the timeline's first, which is 0
  std::string what;
  std::optional<std::pair<Nanoseconds, Nanoseconds>> a, b;  // [begin, end); nothing: it is missing there
};

struct TimelineDiff {
  TimelineFigures a, b;
  std::optional<TimelineParting> parting;  // nothing: they agree within the tolerance
  std::vector<TimelineDifference> kinds;   // all kinds of work
  std::vector<TimelineDifference>
      largest;  // spans by falling difference; those within the tolerance are left out
};

// Compares span by span the iterations that both timelines have: a compute span with the one of the same kind and
// layer, an op with that of the same label on the link of the same name. Two times agree if they differ by at most
// `tolerance` x the mean iteration of `a`. O(spans log spans).
TimelineDiff diff_of(const Timeline& a, const Timeline& b, double tolerance);

// Where two ranks that have both stopped left the path that they had in common, and what each did last.
struct PathDiff {
  struct Place {
    std::int64_t iteration = 0;  // of the run
    std::string what;            // "all_reduce conv1.weight on eth0", "backward conv1"
    std::string a, b;            // "ended", "began and did not end", "did not begin"
  };
  std::optional<Place> parting;  // nothing: both did the same
  std::optional<Place> both_in;  // then: the op that both began and neither ended, if there is one
  std::string last_a, last_b;    // "backward conv1 of iteration 7"
};

// Compares what the ranks of one job did, in the plan's order, from the first iteration on that both timelines have: ops,
// and where these are the same, compute. An op that neither ended holds both up: what one began behind it is no parting.
// Times don't count. O(spans log spans).
PathDiff path_diff_of(const Timeline& a, const Timeline& b);

// Returns the timelines in the Chrome trace event form that Perfetto and chrome://tracing open: one process per
// timeline, one thread per track; times in microseconds from the first span of all. Flows lead from an op to the
// wait for it; counters say how many bytes are in flight and how long compute has waited in all.
std::string to_chrome_trace(const std::vector<Timeline>& timelines);

struct PictureOptions {
  Nanoseconds width_ns = 0;            // the time that the width shows; 0: all of it
  std::optional<double> iteration_ns;  // printed; nothing: each timeline's own figures
};

// Returns the timelines as one self-contained SVG picture, under each other on a common time axis: compute above the
// links, waits hatched, details as tooltips, a legend of what is drawn; readable on light and dark pages. Ops that
// overlap on a link stand in lanes of their own.
std::string to_svg(const std::vector<Timeline>& timelines, const PictureOptions& options = {});

}  // namespace gradweave
