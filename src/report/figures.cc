#include <algorithm>

#include "gradweave/timeline.h"

namespace gradweave {

TimelineFigures figures_of(const Timeline& timeline) {
  TimelineFigures figures;
  Nanoseconds compute_end = 0;
  std::map<std::int32_t, double> waits;
  std::map<std::int32_t, std::map<std::string, Nanoseconds>> reasons;
  for (const Span& span : timeline.spans) {
    if (span.track != 0) continue;
    const auto [begin, added] = figures.begins.emplace(span.iteration, span.begin_ns);
    if (!added) begin->second = std::min(begin->second, span.begin_ns);
    compute_end = std::max(compute_end, span.end_ns);
  }
  if (figures.begins.empty()) return figures;
  figures.iterations = static_cast<std::int64_t>(figures.begins.size());
  const Nanoseconds first = figures.begins.begin()->second;
  const auto last = std::prev(figures.begins.end());
  const bool alone = figures.iterations == 1;
  const auto counted = static_cast<double>(alone ? 1 : figures.iterations - 1);
  figures.iteration_ns = static_cast<double>((alone ? compute_end : last->second) - first) / counted;
  for (const Span& span : timeline.spans) {
    if (span.kind != SpanKind::kWait || (!alone && span.iteration == last->first)) continue;
    const Nanoseconds time = span.end_ns - span.begin_ns;
    waits[span.layer] += static_cast<double>(time) / counted;
    reasons[span.layer][span.reason] += time;
  }
  for (const auto& [layer, time] : waits) {
    const auto& causes = reasons[layer];
    const auto most = std::ranges::max_element(causes, {}, [](const auto& cause) { return cause.second; });
    figures.exposed_layers.push_back({layer, time, most->first});
    figures.exposed_ns += time;
  }
  return figures;
}

}  // namespace gradweave
