#include "report/contents.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "gradweave/error.h"
#include "model/cluster_parts.h"

namespace gradweave {
namespace {

constexpr double kMostOps = 20'000;  // of an iteration that is simulated at every point of the sliders
constexpr double kSame = 1e-6;       // relative: a bandwidth that was computed is no number for people

// Puts `here` among the values, if none is the same, and returns its place.
template <typename Number>
std::size_t insert(std::vector<Number>& values, Number here) {
  std::erase_if(values, [&](Number value) {
    return std::abs(static_cast<double>(value - here)) <= kSame * static_cast<double>(here);
  });
  values.push_back(here);
  std::ranges::sort(values);
  const auto end = std::ranges::unique(values);
  values.erase(end.begin(), end.end());
  return static_cast<std::size_t>(std::ranges::find(values, here) - values.begin());
}

// The bandwidth on the wire of the first link's all-reduce: a ring moves 2(P-1)/P bytes for each byte.
double gigabits_of(const Cluster& cluster) {
  const auto workers = static_cast<double>(participants(cluster));
  return 8e-3 * 2 * (workers - 1) / workers / to_double(cluster.links[0].us_per_byte);
}

double startup_us_of(const Cluster& cluster) {
  return static_cast<double>(cluster.links[0].startup_ns) / 1000;
}

Grid axes_of(const ReportInput& input) {
  const Cluster& cluster = *input.cluster;
  Grid grid{.workers = {1}, .gigabits = {0}, .startup_us = {startup_us_of(cluster)}};
  // From one worker, or node, nothing can be scaled.
  const std::int64_t nodes = participants(cluster), of_node = cluster.workers / nodes;
  if (nodes == 1) {
    grid.workers = {cluster.workers};
    return grid;
  }
  // What was asked for must be possible; what the page adds may not be.
  for (const std::int64_t workers : input.workers) scaled_to(cluster, workers);
  grid.workers = input.workers;
  if (grid.workers.empty()) {
    for (const std::int64_t factor : {4, 2})
      grid.workers.push_back(of_node * std::max<std::int64_t>(2, nodes / factor));
    for (const std::int64_t factor : {2, 4}) grid.workers.push_back(cluster.workers * factor);
  }
  grid.here.worker = insert(grid.workers, cluster.workers);
  if (cluster.links[0].us_per_byte.mantissa != 0) {
    const double here = gigabits_of(cluster);
    for (const double gigabits : input.gigabits) with_bandwidth(cluster, gigabits);
    grid.gigabits = input.gigabits;
    if (grid.gigabits.empty()) {
      for (const double factor : {0.125, 0.25, 0.5, 2.0, 4.0, 8.0}) grid.gigabits.push_back(factor * here);
    }
    grid.here.gigabit = insert(grid.gigabits, here);
  }
  if (const double here = startup_us_of(cluster); here > 0) {
    grid.startup_us = input.startup_us;
    if (grid.startup_us.empty()) grid.startup_us = {here / 4, here * 4};
    grid.here.startup = insert(grid.startup_us, here);
  }
  return grid;
}

void multiply_startup(Cluster& cluster, double factor) {
  for (Link& link : cluster.links) {
    for_each_line(link, [factor](Nanoseconds& startup, Decimal&, const char*) {
      startup = std::llround(static_cast<double>(startup) * factor);
    });
  }
}

Cluster cluster_at(const ReportInput& input, const Grid& grid, const Grid::Place& place) {
  Cluster cluster = *input.cluster;
  if (place.startup != grid.here.startup)
    multiply_startup(cluster, grid.startup_us[place.startup] / grid.startup_us[grid.here.startup]);
  // One worker has no bandwidth left to change.
  if (place.gigabit != grid.here.gigabit) cluster = with_bandwidth(cluster, grid.gigabits[place.gigabit]);
  return place.worker == grid.here.worker ? cluster : scaled_to(cluster, grid.workers[place.worker]);
}

Row row_of(const NamedPlan& named, const Setting& setting) {
  Row row{.name = named.name,
          .workers = setting.cluster.workers,
          .gigabits = std::nullopt,
          .effect = effects_of(named.plan).front()};
  row.search_report = named.plan.search_report;
  row.result = simulate(named.plan, setting.classes, setting.cluster, setting.simulation);
  add_proved_optimum(named.plan, setting.classes, setting.cluster, *row.result);
  row.result->name = row.name;
  row.result->timeline.name = row.name;
  return row;
}

// Does `work(0)`, ..., `work(count - 1)`, each once, on all processors.
void for_all(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::future<void>> threads;
  for (std::size_t t = 0; t < std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, count + 1);
       ++t) {
    threads.push_back(std::async(std::launch::async, [&] {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    }));
  }
  for (std::future<void>& thread : threads) thread.wait();
  for (std::future<void>& thread : threads) thread.get();
}

// What a method is planned by for its row.
struct Planned {
  Method method;
  CommonOptions options;
};

// The compressor that the options give the scheme, empty if none.
std::string compressor_of(const std::string& scheme, const CommonOptions& options) {
  const auto own = options.of(scheme);
  const auto* set = std::get_if<SchemeOptions>(&own);
  const OptionValue* compressor = set != nullptr ? set->find("compressor") : nullptr;
  if (compressor == nullptr || to_string(*compressor) == "none") return {};
  return to_string(*compressor);
}

// The baseline is planned as it is, without a compressor, and where the options give it one, once more with it.
std::vector<Planned> planned_by(const ReportInput& input) {
  std::vector<Planned> rows;
  for (Method method : input.methods) {
    const bool has_own = method.options.contains("compressor");
    const std::string through =
        method.name == input.baseline && !has_own ? compressor_of(method.scheme, input.options) : "";
    if (!through.empty()) {
      rows.push_back({method, input.options.without_compressor()});
      method.name.append(" +").append(through);
    }
    rows.push_back({method, input.options});
  }
  return rows;
}

// One row in one setting: a scheme's, then the plans'.
Row row_at(const ReportInput& input, const std::vector<Planned>& planned, std::size_t row,
           const Setting& setting) {
  if (row >= planned.size()) return row_of(input.plans[row - planned.size()], setting);
  return compare_one(planned[row].method, setting, planned[row].options);
}

}  // namespace

Contents contents_of(const ReportInput& input) {
  Contents contents{.slowest = slowest_of(input.classes), .rows = {}, .grid = axes_of(input)};
  Grid& grid = contents.grid;
  const std::vector<Planned> planned = planned_by(input);
  contents.planned = planned.size();
  const std::size_t count = planned.size() + input.plans.size();
  contents.rows.resize(count);
  grid.iteration_ns.assign(count, std::vector<std::optional<double>>(grid.points()));

  Setting setting{.classes = input.classes,
                  .slowest = contents.slowest,
                  .cluster = *input.cluster,
                  .gigabits = std::nullopt,
                  .simulation = input.simulation};
  Setting what_if = setting;
  what_if.simulation.timeline_iterations = 0;
  what_if.simulation.plan_facts = false;

  std::mutex mutex;
  std::size_t done = 0;
  const std::size_t total = count * (1 + grid.points());
  const auto report_progress = [&](std::size_t finished) {
    const std::lock_guard lock(mutex);
    done += finished;
    if (input.progress) input.progress(done, total);
  };
  // Those that search many plans take long, and each of the others is one of them; so do those of very many ops.
  const auto on_the_grid = [&](std::size_t row) {
    if (const auto& here = contents.rows[row].result; here && here->ops_per_iteration > kMostOps)
      return false;
    return row >= planned.size() || !find_scheme(planned[row].method.scheme).chooses;
  };
  for_all(count, [&](std::size_t row) {
    contents.rows[row] = row_at(input, planned, row, setting);
    report_progress(on_the_grid(row) ? 1 : 1 + grid.points());
  });
  // There is no time at a point where no cluster can be, of too many workers or a rate of too many digits.
  const auto time_at = [&](std::size_t row, const Grid::Place& place) -> std::optional<double> {
    try {
      Setting here = what_if;
      here.cluster = cluster_at(input, grid, place);
      const Row found = row_at(input, planned, row, here);
      if (found.result) return found.iteration_ns();
    } catch (const InvalidInput&) {
    }
    return std::nullopt;
  };
  for_all(grid.points(), [&](std::size_t point) {
    const Grid::Place place{.worker = point / (grid.gigabits.size() * grid.startup_us.size()),
                            .gigabit = point / grid.startup_us.size() % grid.gigabits.size(),
                            .startup = point % grid.startup_us.size()};
    for (std::size_t row = 0; row < count; ++row) {
      if (!on_the_grid(row)) continue;
      grid.iteration_ns[row][point] = time_at(row, place);
      report_progress(1);
    }
  });
  return contents;
}

std::vector<std::string> layers_of(const std::vector<Timeline>& timelines) {
  constexpr std::int32_t kMostLayers = 1'000'000;
  std::map<std::int32_t, std::string> names;
  for (const Timeline& timeline : timelines) {
    for (const Span& span : timeline.spans) {
      const bool of_layer = span.kind == SpanKind::kForward || span.kind == SpanKind::kBackward;
      if (of_layer && span.layer >= 0 && span.layer < kMostLayers) names.emplace(span.layer, span.label);
    }
  }
  std::vector<std::string> layers;
  for (const auto& [layer, name] : names) {
    while (std::ssize(layers) < layer) layers.push_back(std::to_string(layers.size()));
    layers.push_back(name);
  }
  return layers;
}

}  // namespace gradweave
