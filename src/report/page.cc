// Writes the page: the template, and the contents as JSON inside it.
#include <cmath>
#include <map>

#include "gradweave/error.h"
#include "gradweave/report.h"
#include "io/lanes.h"
#include "report/contents.h"
#include "report/result_json.h"
#include "report/template.h"

namespace gradweave {
namespace {

// To 6 digits that count: a page of thousands of numbers.
double short_us(double nanoseconds) {
  if (nanoseconds == 0) return 0;
  const double scale = std::pow(10, 5 - std::floor(std::log10(std::abs(nanoseconds))));
  return std::round(nanoseconds * scale) / scale / 1000;
}

// Texts that repeat, each once.
class Texts {
 public:
  std::size_t place_of(const std::string& text) {
    const auto [entry, added] = places_.emplace(text, places_.size());
    if (added) list_.push_back(text);
    return entry->second;
  }
  Json take() { return std::move(list_); }

 private:
  std::map<std::string, std::size_t> places_;
  Json list_ = Json::array();
};

Json object_of(const std::vector<ExposedLayer>& layers) {
  Json list = Json::array();
  for (const ExposedLayer& layer : layers)
    list.push_back({{"layer", layer.layer}, {"us", short_us(layer.exposed_ns)}, {"reason", layer.reason}});
  return list;
}

// Ops that are drawn as one span.
struct Joined {
  std::size_t place = 0;  // among those drawn
  std::int64_t iteration = 0;
  Nanoseconds begin_ns = 0;
  std::int64_t bytes = 0, ops = 0;
};

// More spans than a screen can show are drawn with those neighbours on a link joined that are shorter than its pixels.
constexpr std::size_t kMostSpans = 20'000;

// Spans are lists in the order of the page's script: kind, track, lane, iteration, layer, op, link of the op waited
// for, begin, length, bytes, label, reason.
Json object_of(const Timeline& timeline) {
  const Lanes lanes = assign_lanes(timeline);
  Nanoseconds origin = timeline.spans.empty() ? 0 : timeline.spans.front().begin_ns;
  for (const Span& span : timeline.spans) origin = std::min(origin, span.begin_ns);
  Nanoseconds pixel = -1;  // nothing is joined
  if (timeline.spans.size() > kMostSpans) {
    Nanoseconds end = origin;
    for (const Span& span : timeline.spans) end = std::max(end, span.end_ns);
    pixel = (end - origin) / static_cast<Nanoseconds>(kMostSpans);
  }
  Texts texts;
  Json spans = Json::array();
  std::map<std::pair<std::int32_t, std::int32_t>, Joined> last;  // by track and lane
  for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
    const Span& span = timeline.spans[i];
    if (lanes.lane[i] < 0) continue;
    if (span.kind == SpanKind::kOp) {
      Joined& joined = last[{span.track, lanes.lane[i]}];
      if (joined.ops > 0 && joined.iteration == span.iteration && span.end_ns - joined.begin_ns <= pixel) {
        joined.bytes += span.bytes;
        Json& drawn = spans[joined.place];
        drawn[5] = span.op;
        drawn[8] = span.end_ns - joined.begin_ns;
        drawn[9] = joined.bytes;
        drawn[10] = texts.place_of(std::to_string(++joined.ops) + " messages");
        continue;
      }
      joined = {spans.size(), span.iteration, span.begin_ns, span.bytes, 1};
    }
    spans.push_back({static_cast<int>(span.kind), span.track, lanes.lane[i], span.iteration, span.layer,
                     span.op, span.op_link, span.begin_ns - origin, span.end_ns - span.begin_ns, span.bytes,
                     texts.place_of(span.label), texts.place_of(span.reason)});
  }
  return {{"links", timeline.links},
          {"lanes", lanes.count},
          {"texts", texts.take()},
          {"spans", std::move(spans)}};
}

Json object_of(const Row& row) {
  Json object = {{"name", row.name}, {"effect", name_of(row.effect)}, {"origin", "simulated"}};
  if (!row.result) {
    object["starves"] = row.infeasible;
    return object;
  }
  const SimulationResult& result = *row.result;
  object["iteration_us"] = microseconds_of(result.cycle_ns, result.cycle_iterations);
  object["exposed_us"] = microseconds_rounded(result.exposed_ns);
  object["compute_us"] = microseconds_of(result.compute_ns);
  object["updates"] = result.updates_per_iteration;
  object["staleness"] = result.staleness_max;
  object["extra_bytes"] = result.extra_bytes;
  object["ops"] = result.ops_per_iteration;
  object["bytes"] = result.bytes_per_iteration;
  object["bound_us"] = microseconds_rounded(result.lower_bound.iteration_ns);
  object["bound"] = result.lower_bound.name;
  object["layers"] = object_of(result.exposed_layers);
  object["timeline"] = object_of(result.timeline);
  return object;
}

Json row_of_measured(const Timeline& timeline) {
  const TimelineFigures figures = figures_of(timeline);
  return {{"name", timeline.name},
          {"effect", ""},
          {"origin", timeline.origin},
          {"given", true},
          {"iteration_us", short_us(figures.iteration_ns)},
          {"exposed_us", short_us(figures.exposed_ns)},
          {"layers", object_of(figures.exposed_layers)},
          {"timeline", object_of(timeline)}};
}

Json object_of(const Grid& grid) {
  Json rows = Json::array();
  for (const auto& times : grid.iteration_ns) {
    Json row = Json::array();
    for (const std::optional<double>& time : times) row.push_back(time ? Json(short_us(*time)) : Json());
    rows.push_back(std::move(row));
  }
  return {{"workers", grid.workers},
          {"gigabits", grid.gigabits},
          {"startup_us", grid.startup_us},
          {"here", {grid.here.worker, grid.here.gigabit, grid.here.startup}},
          {"iteration_us", std::move(rows)}};
}

Json facts_of(const ReportInput& input, const Contents& contents) {
  const WorkloadIndex index(contents.slowest);
  Json links = Json::array();
  for (const Link& link : input.cluster->links) links.push_back(link.name);
  return {{"workload", contents.slowest.name},
          {"layers", index.layer_count},
          {"tensors", index.tensors.size()},
          {"bytes", index.total_bytes},
          {"forward_us", microseconds_of(index.forward_total)},
          {"backward_us", microseconds_of(index.backward_total)},
          {"classes", input.classes.size()},
          {"workers", input.cluster->workers},
          {"links", std::move(links)}};
}

Json data_of(const ReportInput& input) {
  Json data = {{"baseline", input.baseline}, {"rows", Json::array()}};
  if (input.cluster) {
    const Contents contents = contents_of(input);
    data["facts"] = facts_of(input, contents);
    data["layers"] = Json::array();
    for (const Layer& layer : contents.slowest.layers) data["layers"].push_back(layer.name);
    for (const Row& row : contents.rows) {
      data["rows"].push_back(object_of(row));
      data["rows"].back()["given"] = data["rows"].size() > contents.planned;
    }
    data["grid"] = object_of(contents.grid);
    data["advice"] = advice_of(input, contents);
  } else {
    const std::vector<std::string> layers = layers_of(input.timelines);
    data["layers"] = layers;
    data["advice"] = advice_of(input.timelines, layers);
  }
  data["measured"] = input.measured;
  for (const Timeline& timeline : input.timelines) data["rows"].push_back(row_of_measured(timeline));
  return data;
}

// JSON that stands in a page: no text in it can end its element. A '<' occurs within strings only.
std::string within_page(const Json& data) {
  std::string text;
  for (const char c : dump(data)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

void replace(std::string& text, std::string_view mark, std::string_view with) {
  text.replace(text.find(mark), mark.size(), with);
}

}  // namespace

std::string report_page(const ReportInput& input) {
  if (input.classes.empty() != !input.cluster || (input.classes.empty() && input.timelines.empty())) {
    throw InvalidInput("there is nothing to show", "report",
                       "give a workload with its cluster, or a timeline");
  }
  std::string page(kPageHtml);
  const std::string data = within_page(data_of(input));
  replace(page, "/*style*/", kPageStyle);
  replace(page, "/*script*/", kPageScript);
  replace(page, "{data}", data);
  return page;
}

}  // namespace gradweave
