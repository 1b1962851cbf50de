// Where two timelines part.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <tuple>

#include "gradweave/timeline.h"

namespace gradweave {
namespace {

constexpr std::array<std::string_view, 5> kKindNames = {"forward", "backward", "optimizer", "wait", "op"};

std::string link_name(const Timeline& timeline, std::int32_t link) {
  return link >= 0 && static_cast<std::size_t>(link) < timeline.links.size()
             ? timeline.links[static_cast<std::size_t>(link)]
             : std::to_string(link);
}

// What a span is called in both timelines.
std::string what_of(const Timeline& timeline, const Span& span) {
  switch (span.kind) {
    case SpanKind::kOp:
      return span.label + " on " + link_name(timeline, span.track - 1);
    case SpanKind::kWait:
      return span.layer < 0 ? "wait at the end of the iteration"
                            : "wait before layer " + std::to_string(span.layer);
    case SpanKind::kForward:
    case SpanKind::kBackward:
    case SpanKind::kOptimizer:
      break;
  }
  const std::string kind(kKindNames[static_cast<std::size_t>(span.kind)]);
  return span.label.empty() || span.label == kind ? kind : kind + " " + span.label;
}

// A span's iteration from the first, its name, and which of several of that name it is.
using Key = std::tuple<std::int64_t, std::string, int>;
using Interval = std::pair<Nanoseconds, Nanoseconds>;

// The spans of the first `iterations` iterations, from the begin of the first.
std::map<Key, Interval> spans_of(const Timeline& timeline, const TimelineFigures& figures,
                                 std::int64_t iterations) {
  std::map<Key, Interval> spans;
  if (figures.begins.empty()) return spans;
  const auto [first, origin] = *figures.begins.begin();
  std::map<std::pair<std::int64_t, std::string>, int> seen;
  for (const Span& span : timeline.spans) {
    const std::int64_t iteration = span.iteration - first;
    if (iteration < 0 || iteration >= iterations) continue;
    std::string what = what_of(timeline, span);
    const int which = seen[{iteration, what}]++;
    spans.emplace(Key{iteration, std::move(what), which},
                  Interval{span.begin_ns - origin, span.end_ns - origin});
  }
  return spans;
}

// Times per iteration of all spans that have one name.
using Totals = std::map<std::string, double>;

Totals totals_of(const std::map<Key, Interval>& spans, std::int64_t iterations) {
  Totals totals;
  for (const auto& [key, interval] : spans)
    totals[std::get<1>(key)] +=
        static_cast<double>(interval.second - interval.first) / static_cast<double>(iterations);
  return totals;
}

Totals kinds_of(const Timeline& timeline, const TimelineFigures& figures, std::int64_t iterations) {
  Totals totals;
  if (figures.begins.empty()) return totals;
  const std::int64_t first = figures.begins.begin()->first;
  for (const Span& span : timeline.spans) {
    if (span.iteration < first || span.iteration >= first + iterations) continue;
    const std::string what = span.kind == SpanKind::kOp
                                 ? "ops on " + link_name(timeline, span.track - 1)
                                 : std::string(kKindNames[static_cast<std::size_t>(span.kind)]);
    totals[what] += static_cast<double>(span.end_ns - span.begin_ns) / static_cast<double>(iterations);
  }
  return totals;
}

std::vector<TimelineDifference> joined(const Totals& a, const Totals& b) {
  std::map<std::string, TimelineDifference> rows;
  for (const auto& [what, time] : a) rows[what].a_ns = time;
  for (const auto& [what, time] : b) rows[what].b_ns = time;
  std::vector<TimelineDifference> differences;
  for (auto& [what, row] : rows) {
    row.what = what;
    differences.push_back(std::move(row));
  }
  return differences;
}

double difference(const TimelineDifference& row) {
  return std::abs(row.a_ns.value_or(0) - row.b_ns.value_or(0));
}

bool agree(const Interval& a, const Interval& b, double tolerance_ns) {
  const auto near = [&](Nanoseconds x, Nanoseconds y) {
    return std::abs(static_cast<double>(x - y)) <= tolerance_ns;
  };
  return near(a.first, b.first) && near(a.second, b.second);
}

// The earliest span on which they don't agree.
std::optional<TimelineParting> parting_of(const std::map<Key, Interval>& a, const std::map<Key, Interval>& b,
                                          double tolerance_ns, std::int64_t iterations) {
  std::optional<TimelineParting> parting;
  // Of spans that part at one time, one that is in one timeline only explains the others, and so does what began
  // earlier.
  auto earliest = std::tuple(std::numeric_limits<Nanoseconds>::max(), true, Nanoseconds{0});
  const auto offer = [&](const Key& key, std::optional<Interval> in_a, std::optional<Interval> in_b) {
    const bool both = in_a && in_b;
    const Nanoseconds begin = both ? std::min(in_a->first, in_b->first) : (in_a ? in_a : in_b)->first;
    const Nanoseconds parts =
        both && in_a->first == in_b->first ? std::min(in_a->second, in_b->second) : begin;
    if (std::tuple(parts, both, begin) >= earliest) return;
    earliest = {parts, both, begin};
    parting = {.iteration = std::get<0>(key), .what = std::get<1>(key), .a = in_a, .b = in_b};
  };
  // An op of the last iteration may be beyond the end of one of them; a wait shorter than the tolerance is no matter.
  const auto counts = [&](const Key& key, const Interval& interval) {
    return (std::get<0>(key) + 1 < iterations || iterations == 1) &&
           static_cast<double>(interval.second - interval.first) > tolerance_ns;
  };
  for (const auto& [key, interval] : a) {
    const auto other = b.find(key);
    if (other == b.end()) {
      if (counts(key, interval)) offer(key, interval, std::nullopt);
    } else if (!agree(interval, other->second, tolerance_ns)) {
      offer(key, interval, other->second);
    }
  }
  for (const auto& [key, interval] : b) {
    if (!a.contains(key) && counts(key, interval)) offer(key, std::nullopt, interval);
  }
  return parting;
}

}  // namespace

TimelineDiff diff_of(const Timeline& a, const Timeline& b, double tolerance) {
  TimelineDiff diff{
      .a = figures_of(a), .b = figures_of(b), .parting = std::nullopt, .kinds = {}, .largest = {}};
  const std::int64_t iterations = std::min(diff.a.iterations, diff.b.iterations);
  if (iterations == 0) return diff;
  const double tolerance_ns = tolerance * diff.a.iteration_ns;
  const auto spans_a = spans_of(a, diff.a, iterations), spans_b = spans_of(b, diff.b, iterations);
  diff.parting = parting_of(spans_a, spans_b, tolerance_ns, iterations);
  diff.kinds = joined(kinds_of(a, diff.a, iterations), kinds_of(b, diff.b, iterations));
  diff.largest = joined(totals_of(spans_a, iterations), totals_of(spans_b, iterations));
  std::erase_if(diff.largest, [&](const TimelineDifference& row) { return difference(row) <= tolerance_ns; });
  std::ranges::stable_sort(diff.largest, std::greater<>(), difference);
  return diff;
}

}  // namespace gradweave
