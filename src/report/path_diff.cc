// Where two ranks left the path that they had in common.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "base/text.h"
#include "gradweave/timeline.h"

namespace gradweave {
namespace {

enum class State : std::uint8_t { kMissing, kUnderWay, kEnded };

// A step of the path: its iteration, its place in the order of that iteration, and its name.
using PathStep = std::tuple<std::int64_t, std::int64_t, std::string>;
using Path = std::map<PathStep, State>;

std::string link_of(const Timeline& timeline, std::int32_t link) {
  const auto place = static_cast<std::size_t>(link);
  return link >= 0 && place < timeline.links.size() ? timeline.links[place] : std::to_string(link);
}

std::string name_of(const Timeline& timeline, const Span& span) {
  switch (span.kind) {
    case SpanKind::kOp:
      return span.label + " on " + link_of(timeline, span.track - 1);
    case SpanKind::kWait:
      return "the wait for " + span.reason;
    case SpanKind::kForward:
      return "forward " + span.label;
    case SpanKind::kBackward:
      return "backward " + span.label;
    case SpanKind::kOptimizer:
      break;
  }
  return "the optimizer";
}

// Forward in the order of layers, backward against it, then the optimizer.
std::int64_t compute_order(const Span& span) {
  constexpr std::int64_t kMostLayers = std::int64_t{1} << 32;
  if (span.kind == SpanKind::kForward) return span.layer;
  return span.kind == SpanKind::kBackward ? 2 * kMostLayers - span.layer : 3 * kMostLayers;
}

std::int64_t first_iteration(const Timeline& timeline) {
  return timeline.spans.empty() ? 0 : std::ranges::min(timeline.spans, {}, &Span::iteration).iteration;
}

Path path_of(const Timeline& timeline, std::int64_t from, bool ops) {
  Path path;
  for (const Span& span : timeline.spans) {
    if (span.iteration < from || span.kind == SpanKind::kWait || (span.kind == SpanKind::kOp) != ops)
      continue;
    const std::int64_t place = ops ? span.op : compute_order(span);
    path[{span.iteration, place, name_of(timeline, span)}] = span.ended ? State::kEnded : State::kUnderWay;
  }
  return path;
}

std::string words_of(State state) {
  if (state == State::kMissing) return "did not begin";
  return state == State::kEnded ? "ended" : "began and did not end";
}

// Finds the first step that not both have ended.
void find_parting(const Path& a, const Path& b, PathDiff& diff) {
  Path all = a;
  all.insert(b.begin(), b.end());
  const auto state_in = [](const Path& path, const PathStep& step) {
    const auto found = path.find(step);
    return found == path.end() ? State::kMissing : found->second;
  };
  for (const auto& [step, any] : all) {
    const State in_a = state_in(a, step), in_b = state_in(b, step);
    if (in_a == State::kEnded && in_b == State::kEnded) continue;
    (in_a == in_b ? diff.both_in : diff.parting) = {
        .iteration = std::get<0>(step), .what = std::get<2>(step), .a = words_of(in_a), .b = words_of(in_b)};
    return;
  }
}

// What compute did last.
std::string last_of(const Timeline& timeline) {
  const Span* last = nullptr;
  for (const Span& span : timeline.spans) {
    if (span.kind != SpanKind::kOp && (last == nullptr || span.end_ns >= last->end_ns)) last = &span;
  }
  if (last == nullptr) return "nothing";
  std::string text = name_of(timeline, *last) + " of iteration " + std::to_string(last->iteration);
  if (!last->ended)
    text += ", for " + time_text(static_cast<double>(last->end_ns - last->begin_ns)) + " without an end";
  return text;
}

}  // namespace

PathDiff path_diff_of(const Timeline& a, const Timeline& b) {
  PathDiff diff{.parting = std::nullopt, .both_in = std::nullopt, .last_a = last_of(a), .last_b = last_of(b)};
  const std::int64_t from = std::max(first_iteration(a), first_iteration(b));
  for (const bool ops : {true, false}) {
    if (!diff.parting && !diff.both_in) find_parting(path_of(a, from, ops), path_of(b, from, ops), diff);
  }
  return diff;
}

}  // namespace gradweave
