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

std::string event(const Timeline& timeline, const Span& span, std::size_t process, std::int32_t thread) {
  const auto kind = static_cast<std::size_t>(span.kind);
  return "{\"ph\": \"X\", \"name\": " + json_string(name_of(span)) + ", \"cat\": \"" +
         std::string(kCategories[kind]) + "\", \"cname\": \"" + std::string(kChromeColours[kind]) +
         "\", \"pid\": " + std::to_string(process) + ", \"tid\": " + std::to_string(thread) +
         ", \"ts\": " + microseconds(span.begin_ns) +
         ", \"dur\": " + microseconds(span.end_ns - span.begin_ns) + ", \"args\": {" +
         arguments(timeline, span) + "}}";
}

void append_process(const Timeline& timeline, std::size_t process, std::vector<std::string>& events) {
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
  for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
    if (lanes.lane[i] < 0) continue;
    const auto track = static_cast<std::size_t>(timeline.spans[i].track);
    events.push_back(event(timeline, timeline.spans[i], process, first_thread[track] + lanes.lane[i]));
  }
}

}  // namespace

std::string to_chrome_trace(const std::vector<Timeline>& timelines) {
  std::vector<std::string> events;
  for (std::size_t i = 0; i < timelines.size(); ++i) append_process(timelines[i], i + 1, events);
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  for (std::size_t i = 0; i < events.size(); ++i) text.append(i == 0 ? "\n" : ",\n").append(events[i]);
  return text + "\n]}\n";
}

}  // namespace gradweave
