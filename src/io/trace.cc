#include <algorithm>
#include <limits>
#include <map>

#include "gradweave/json.h"
#include "gradweave/timeline.h"
#include "io/json_write.h"
#include "io/lanes.h"

namespace gradweave {
namespace {

constexpr std::string_view kCategories[] = {"forward", "backward", "optimizer", "wait", "op"};
// Colours of chrome://tracing; Perfetto colours by name.
constexpr std::string_view kChromeColours[] = {"thread_state_running", "thread_state_runnable",
                                               "thread_state_unknown", "terrible", "rail_response"};

std::string metadata(std::string_view kind, std::size_t process, std::int32_t thread,
                     const std::string& argument) {
  return "{\"ph\": \"M\", \"name\": \"" + std::string(kind) + "\", \"pid\": " + std::to_string(process) +
         ", \"tid\": " + std::to_string(thread) + ", \"args\": {" + argument + "}}";
}

std::string arguments(const Timeline& timeline, const Span& span) {
  std::string text = "\"iteration\": " + std::to_string(span.iteration);
  const auto add = [&text](const char* key, const std::string& value) {
    text.append(", \"").append(key).append("\": ").append(value);
  };
  if (span.layer >= 0) add("layer", std::to_string(span.layer));
  if (span.op >= 0) add("op", std::to_string(span.op));
  if (span.op_link >= 0 && static_cast<std::size_t>(span.op_link) < timeline.links.size()) {
    add("link", json_string(timeline.links[static_cast<std::size_t>(span.op_link)]));
  }
  if (span.bytes > 0) add("bytes", std::to_string(span.bytes));
  if (span.kind == SpanKind::kWait && !span.label.empty()) add("for", json_string(span.label));
  if (!span.reason.empty()) add("reason", json_string(span.reason));
  return text;
}

std::string name_of(const Span& span) {
  switch (span.kind) {
    case SpanKind::kForward:
      return "forward " + span.label;
    case SpanKind::kBackward:
      return "backward " + span.label;
    case SpanKind::kWait:
      return "wait";
    case SpanKind::kOptimizer:
    case SpanKind::kOp:
      break;
  }
  return span.label;
}

// Where an event stands: ", "pid": 1, "tid": 2".
std::string place_of(std::size_t process, std::int32_t thread) {
  return ", \"pid\": " + std::to_string(process) + ", \"tid\": " + std::to_string(thread);
}

std::string event(const Timeline& timeline, const Span& span, const std::string& place, Nanoseconds origin) {
  const auto kind = static_cast<std::size_t>(span.kind);
  return "{\"ph\": \"X\", \"name\": " + json_string(name_of(span)) + ", \"cat\": \"" +
         std::string(kCategories[kind]) + "\", \"cname\": \"" + std::string(kChromeColours[kind]) + "\"" +
         place + ", \"ts\": " + microseconds(span.begin_ns - origin) +
         ", \"dur\": " + microseconds(span.end_ns - span.begin_ns) + ", \"args\": {" +
         arguments(timeline, span) + "}}";
}

// An arrow from the op that was waited for, as far as it ended by then, to the end of the wait.
void append_flow(const Timeline& timeline, std::size_t wait, const std::vector<std::string>& places,
                 std::size_t& flows, Nanoseconds origin, std::vector<std::string>& events) {
  const Span& waited = timeline.spans[wait];
  if (waited.kind != SpanKind::kWait || waited.op < 0) return;
  // The last op of that number that began before the wait's end: spans are sorted by begin, so it is near.
  const auto end = std::ranges::lower_bound(timeline.spans, waited.end_ns, {}, &Span::begin_ns);
  for (auto i = static_cast<std::size_t>(end - timeline.spans.begin()); i-- > 0;) {
    const Span& op = timeline.spans[i];
    if (op.kind != SpanKind::kOp || op.op != waited.op || op.track != waited.op_link + 1 || places[i].empty())
      continue;
    const std::string flow =
        ", \"cat\": \"wait\", \"name\": \"waits for\", \"id\": " + std::to_string(++flows);
    const Nanoseconds leaves = std::max(op.begin_ns, std::min(op.end_ns, waited.end_ns) - 1);
    events.push_back("{\"ph\": \"s\"" + flow + places[i] + ", \"ts\": " + microseconds(leaves - origin) +
                     "}");
    events.push_back("{\"ph\": \"f\", \"bp\": \"e\"" + flow + places[wait] +
                     ", \"ts\": " + microseconds(std::max(leaves, waited.end_ns - 1) - origin) + "}");
    return;
  }
}

// A counter's value after each change. `changes`: time and by how much.
void append_counter(std::string_view name, std::string_view key, std::size_t process, Nanoseconds origin,
                    const std::map<Nanoseconds, std::int64_t>& changes, const auto& text,
                    std::vector<std::string>& events) {
  std::int64_t value = 0;
  for (const auto& [time, change] : changes) {
    value += change;
    events.push_back("{\"ph\": \"C\", \"name\": \"" + std::string(name) + "\", \"pid\": " +
                     std::to_string(process) + ", \"tid\": 0, \"ts\": " + microseconds(time - origin) +
                     ", \"args\": {\"" + std::string(key) + "\": " + text(value) + "}}");
  }
}

void append_counters(const Timeline& timeline, std::size_t process, Nanoseconds origin,
                     std::vector<std::string>& events) {
  std::map<Nanoseconds, std::int64_t> in_flight, exposed;
  for (const Span& span : timeline.spans) {
    if (span.kind == SpanKind::kOp)
      in_flight[span.begin_ns] += span.bytes, in_flight[span.end_ns] -= span.bytes;
    if (span.kind == SpanKind::kWait) exposed[span.end_ns] += span.end_ns - span.begin_ns;
  }
  append_counter(
      "bytes in flight", "bytes", process, origin, in_flight,
      [](std::int64_t bytes) { return std::to_string(bytes); }, events);
  append_counter("exposed so far", "us", process, origin, exposed, microseconds, events);
}

void append_process(const Timeline& timeline, std::size_t process, Nanoseconds origin, std::size_t& flows,
                    std::vector<std::string>& events) {
  const Lanes lanes = assign_lanes(timeline);
  const std::string sort = std::to_string(process);
  events.push_back(metadata("process_name", process, 0,
                            "\"name\": " + json_string(timeline.name + " (" + timeline.origin + ")")));
  events.push_back(metadata("process_sort_index", process, 0, "\"sort_index\": " + sort));
  std::vector<std::int32_t> first_thread;
  std::int32_t threads = 1;
  for (std::size_t track = 0; track < lanes.count.size(); ++track) {
    first_thread.push_back(threads);
    const std::string name = track == 0 ? "compute" : "link " + timeline.links[track - 1];
    for (std::int32_t lane = 0; lane < lanes.count[track]; ++lane, ++threads) {
      const std::string numbered = lane == 0 ? name : name + " (" + std::to_string(lane + 1) + ")";
      events.push_back(metadata("thread_name", process, threads, "\"name\": " + json_string(numbered)));
      events.push_back(
          metadata("thread_sort_index", process, threads, "\"sort_index\": " + std::to_string(threads)));
    }
  }
  std::vector<std::string> places(timeline.spans.size());
  for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
    if (lanes.lane[i] < 0) continue;
    const auto track = static_cast<std::size_t>(timeline.spans[i].track);
    places[i] = place_of(process, first_thread[track] + lanes.lane[i]);
    events.push_back(event(timeline, timeline.spans[i], places[i], origin));
  }
  for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
    if (!places[i].empty()) append_flow(timeline, i, places, flows, origin, events);
  }
  append_counters(timeline, process, origin, events);
}

}  // namespace

std::string to_chrome_trace(const std::vector<Timeline>& timelines) {
  std::vector<std::string> events;
  auto origin = std::numeric_limits<Nanoseconds>::max();
  for (const Timeline& timeline : timelines) {
    for (const Span& span : timeline.spans) origin = std::min(origin, span.begin_ns);
  }
  std::size_t flows = 0;
  for (std::size_t i = 0; i < timelines.size(); ++i)
    append_process(timelines[i], i + 1, origin, flows, events);
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  for (std::size_t i = 0; i < events.size(); ++i) text.append(i == 0 ? "\n" : ",\n").append(events[i]);
  return text + "\n]}\n";
}

}  // namespace gradweave
