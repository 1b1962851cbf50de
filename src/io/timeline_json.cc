#include "gradweave/json.h"
#include "io/json_tree.h"
#include "io/json_write.h"
#include "io/kind.h"

namespace gradweave {
namespace {

constexpr std::string_view kKinds[] = {"forward", "backward", "optimizer", "wait", "op"};

constexpr Nanoseconds kMostTime = std::int64_t{1} << 61;  // so that the difference of two has room

Nanoseconds time_from(const JsonNode& node) {
  const Nanoseconds time = node.microseconds();
  if (time < -kMostTime || time > kMostTime) node.fail("is out of range", "give times within 2^61 ns of 0");
  return time;
}

Span span_from(const JsonNode& node, std::int64_t links) {
  node.require_keys({"kind", "track", "iteration", "layer", "op", "op_link", "begin_us", "end_us", "ended",
                     "bytes", "label", "reason"});
  Span span{.kind = static_cast<SpanKind>(node.at("kind").one_of(kKinds)),
            .track = static_cast<std::int32_t>(node.at("track").integer(0, links)),
            .iteration = node.at("iteration").integer(INT64_MIN, INT64_MAX),
            .begin_ns = time_from(node.at("begin_us")),
            .end_ns = time_from(node.at("end_us"))};
  if (span.end_ns < span.begin_ns) node.at("end_us").fail("is before begin_us", "give the span's end");
  if (const auto layer = node.find("layer")) span.layer = layer->integer32();
  if (const auto op = node.find("op")) span.op = op->integer32();
  if (const auto link = node.find("op_link")) span.op_link = link->integer32();
  if (const auto ended = node.find("ended")) span.ended = ended->boolean();
  if (const auto bytes = node.find("bytes")) span.bytes = bytes->integer(0, INT64_MAX);
  if (const auto label = node.find("label")) span.label = label->text(kMaxTextBytes);
  if (const auto reason = node.find("reason")) span.reason = reason->text(kMaxTextBytes);
  return span;
}

std::string text_of(const Span& span) {
  std::string text = "    {\"kind\": \"" + std::string(kKinds[static_cast<std::size_t>(span.kind)]) +
                     "\", \"track\": " + std::to_string(span.track) +
                     ", \"iteration\": " + std::to_string(span.iteration);
  if (span.layer != -1) text += ", \"layer\": " + std::to_string(span.layer);
  if (span.op != -1) text += ", \"op\": " + std::to_string(span.op);
  if (span.op_link != -1) text += ", \"op_link\": " + std::to_string(span.op_link);
  text += ", \"begin_us\": " + microseconds(span.begin_ns) + ", \"end_us\": " + microseconds(span.end_ns);
  if (!span.ended) text += ", \"ended\": false";
  if (span.bytes != 0) text += ", \"bytes\": " + std::to_string(span.bytes);
  if (!span.label.empty()) text += ", \"label\": " + json_string(span.label);
  if (!span.reason.empty()) text += ", \"reason\": " + json_string(span.reason);
  return text + "}";
}

Stop stop_from(const JsonNode& node) {
  node.require_keys({"rank", "ranks", "doing", "verdict", "heard"});
  Stop stop{.rank = node.at("rank").integer(0, INT32_MAX),
            .ranks = node.at("ranks").integer(1, INT32_MAX),
            .doing = node.at("doing").text(kMaxTextBytes),
            .verdict = node.at("verdict").text(kMaxTextBytes)};
  const JsonNode heard = node.at("heard");
  for (std::size_t i = 0; i < heard.size(); ++i) {
    const JsonNode other = heard.item(i);
    other.require_keys({"rank", "doing", "ops", "ago_us"});
    stop.heard.push_back({.rank = other.at("rank").integer(0, INT32_MAX),
                          .doing = other.at("doing").text(kMaxTextBytes),
                          .ops = other.at("ops").integer(0, INT64_MAX),
                          .ago_ns = other.at("ago_us").duration()});
  }
  return stop;
}

std::string text_of(const Stop& stop) {
  std::string text = ",\n  \"stop\": {\"rank\": " + std::to_string(stop.rank) +
                     ", \"ranks\": " + std::to_string(stop.ranks) +
                     ", \"doing\": " + json_string(stop.doing) +
                     ", \"verdict\": " + json_string(stop.verdict) + ", \"heard\": [";
  for (std::size_t i = 0; i < stop.heard.size(); ++i) {
    const HeardOf& other = stop.heard[i];
    text += std::string(i == 0 ? "" : ",") + "\n    {\"rank\": " + std::to_string(other.rank) +
            ", \"doing\": " + json_string(other.doing) + ", \"ops\": " + std::to_string(other.ops) +
            ", \"ago_us\": " + microseconds(other.ago_ns) + "}";
  }
  return text + "]}";
}

}  // namespace

Timeline parse_timeline(std::string_view text) {
  const JsonValue tree = parse_json(text);
  const JsonNode root(tree);
  require_kind(root, "timeline");
  root.require_keys({"version", "name", "origin", "links", "stop", "spans"});
  Timeline timeline{.name = root.at("name").text(), .origin = root.at("origin").text()};
  const JsonNode links = root.at("links");
  for (std::size_t k = 0; k < links.size(); ++k) timeline.links.push_back(links.item(k).text());
  const JsonNode spans = root.at("spans");
  for (std::size_t i = 0; i < spans.size(); ++i)
    timeline.spans.push_back(span_from(spans.item(i), std::ssize(timeline.links)));
  if (const auto stop = root.find("stop")) timeline.stop = stop_from(*stop);
  return timeline;
}

std::string to_json(const Timeline& timeline) {
  std::string text = "{\n  \"version\": 1,\n  \"name\": " + json_string(timeline.name) +
                     ",\n  \"origin\": " + json_string(timeline.origin) +
                     ",\n  \"links\": " + json_array(timeline.links) +
                     (timeline.stop ? text_of(*timeline.stop) : "") + ",\n  \"spans\": [";
  for (std::size_t i = 0; i < timeline.spans.size(); ++i)
    text += (i == 0 ? "\n" : ",\n") + text_of(timeline.spans[i]);
  return text + (timeline.spans.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

}  // namespace gradweave
