// gradweave compare: all schemes on one screen.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "base/quoted.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/faults.h"
#include "cli/inputs.h"
#include "cli/lists.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/ranked_plans.h"
#include "gradweave/schemes.h"
#include "io/plot.h"
#include "report/rows.h"

namespace gradweave::cli {
namespace {

struct CompareArguments {
  std::vector<std::string> workloads;
  std::string cluster, plot;
  std::vector<std::string> schemes, workers, workers_per_node, links, set;
  SimulationFlags simulation;
  std::optional<std::int64_t> batch_size;
  FaultFlags faults;
  bool json = false;
};

Json object_of(const Row& row, const Setting& setting, std::optional<std::int64_t> batch_size) {
  Json object = row.result ? to_object(*row.result) : Json{{"name", row.name}, {"starves", row.infeasible}};
  object["consistency"] = name_of(row.effect);
  object["workers"] = row.workers;
  if (has_levels(setting.cluster)) object["workers_per_node"] = setting.cluster.workers_per_node;
  if (row.gigabits) object["gigabits"] = *row.gigabits;
  if (const auto rate = coverage_rate(setting.slowest, setting.cluster)) object["coverage_rate"] = *rate;
  if (!row.compressor.empty()) object["compressor"] = row.compressor;
  if (!row.options.empty()) object["options"] = row.options;
  if (row.result) {
    if (const auto efficiency = scaling_efficiency(*row.result)) object["scaling_efficiency"] = *efficiency;
    if (const auto samples = samples_per_second(*row.result, row.workers, batch_size))
      object["samples_per_second"] = *samples;
  }
  if (row.result && row.result->lower_bound.iteration_ns > 0) {
    object["gap"] = row.iteration_ns() / row.result->lower_bound.iteration_ns - 1;
  }
  if (row.times_ddp) object["times_ddp"] = *row.times_ddp;
  object["changes_training"] = row.effect != Effect::kExact;
  if (row.optimum) {
    object["optimum_us"] = row.optimum->iteration_ns / 1000;
    if (row.optimum->iteration_ns > 0)
      object["over_optimum"] = row.iteration_ns() / row.optimum->iteration_ns - 1;
    if (row.optimum->bound_ns) {
      object["optimum_bound_us"] = *row.optimum->bound_ns / 1000;
      object["optimum_proof"] = row.optimum->proof;
    }
  }
  for (const Extrapolation& e : row.extrapolated)
    object["extrapolated"][e.link] = {e.sent.smallest, e.sent.largest};
  if (row.search_report) {
    object["chosen"] = to_object(row.search_report->chosen);
    object["reason"] = row.search_report->reason;
    if (row.search_report->if_corrected) object["if_corrected"] = to_object(*row.search_report->if_corrected);
  }
  return object;
}

// How much longer than the best plan known of the same effect.
std::string over_optimum(const Row& row) {
  if (!row.optimum || row.optimum->iteration_ns <= 0) return "-";
  return fmt::format("{:.2f} %", 100 * (row.iteration_ns() / row.optimum->iteration_ns - 1));
}

// The columns, in order; those that take more than a usual terminal's width are for wide tables.
constexpr std::array kColumns = {
    "",      "scheme", "effect",       "iteration", "times ddp", "efficiency", "samples/s", "exposed",
    "stale", "extra",  "over optimum", "gap",       "bound",     "binds",      "x compute", "updates/it"};
constexpr std::size_t kNarrowColumns = 10;
// Samples are shown where the batch size is known, in place of memory.
constexpr std::size_t kSamplesColumn = 6, kExtraColumn = 9;

std::vector<std::string> cells_of(const Row& row, std::optional<std::int64_t> batch_size, bool best) {
  const std::string marks = std::string(best ? "*" : " ") + (row.effect == Effect::kExact ? " " : "!");
  const bool told =
      row.compressor.empty() || row.name.find(" compressor=" + row.compressor) != std::string::npos;
  const std::string through = told ? "" : " +" + row.compressor;
  std::vector<std::string> cells = {marks, row.name + through, std::string(name_of(row.effect))};
  if (row.result) {
    const SimulationResult& result = *row.result;
    const double bound = result.lower_bound.iteration_ns;
    const auto compute = static_cast<double>(result.compute_ns);
    const auto efficiency = scaling_efficiency(result);
    const auto samples = samples_per_second(result, row.workers, batch_size);
    cells.insert(
        cells.end(),
        {human_time(row.iteration_ns()), row.times_ddp ? fmt::format("{:.2f}", *row.times_ddp) : "-",
         efficiency ? fmt::format("{:.1f} %", 100 * *efficiency) : "-",
         samples ? fmt::format("{:.0f}", *samples) : "-", human_time(result.exposed_ns),
         std::to_string(result.staleness_max), bytes_text(static_cast<double>(result.extra_bytes)),
         over_optimum(row), bound > 0 ? fmt::format("{:.2f} %", 100 * (row.iteration_ns() / bound - 1)) : "-",
         human_time(bound), result.lower_bound.name,
         compute > 0 ? fmt::format("{:.3f}", row.iteration_ns() / compute) : "-",
         fmt::format("{:.3f}", result.updates_per_iteration)});
  } else {
    cells.emplace_back("infeasible");
  }
  cells.resize(kColumns.size());
  return cells;
}

// Rows of exact plans first, then the others, each from the fastest on. `rows`: the fastest first.
Table table_of(std::vector<Row> rows, std::optional<std::int64_t> batch_size) {
  const double least = rows.front().iteration_ns();
  std::ranges::stable_partition(rows, [](const Row& row) { return row.effect == Effect::kExact; });
  Table table{.header = {kColumns.begin(), kColumns.end()}, .rows = {}};
  for (std::size_t i = 0; i < kColumns.size(); ++i) {
    table.left.push_back(i < 3 || kColumns[i] == std::string_view("binds"));
    table.wide.push_back(i >= kNarrowColumns || i == (batch_size ? kExtraColumn : kSamplesColumn));
  }
  for (const Row& row : rows) {
    const bool best = row.result && row.iteration_ns() == least;
    table.rows.push_back(cells_of(row, batch_size, best));
    table.styles.push_back(best ? Style::kGreen : Style::kPlain);
  }
  return table;
}

// Why there are rows without figures.
std::string infeasible_text(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    if (!row.result) text += fmt::format("{} is infeasible: {}\n", row.name, row.infeasible);
  }
  return text;
}

// "dear buffer_bytes=1000000".
std::string with_options(std::string text, const std::map<std::string, std::string>& options) {
  for (const auto& [name, value] : options) text += fmt::format(" {}={}", name, value);
  return text;
}

// The plan in a few words: "dear buffer_bytes=1000000 (exact), 12.3 ms".
std::string summary_text(const PlanSummary& plan) {
  std::string effects;
  for (const Effect effect : plan.effects) effects.append(effects.empty() ? "" : "+").append(name_of(effect));
  return fmt::format("{} ({}), {}", with_options(plan.scheme, plan.options), effects,
                     human_time(plan.iteration_us * 1000));
}

// What scheme `auto` has chosen and what it could have.
std::string choice_text(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    if (row.scheme != kAuto || !row.search_report) continue;
    const SearchReport& search = *row.search_report;
    text += fmt::format("{} chose {}: {}\n", with_options(row.scheme, row.options),
                        summary_text(search.chosen), search.reason);
    if (search.if_corrected)
      text += fmt::format("if corrected averages are allowed: {}\n", summary_text(*search.if_corrected));
  }
  return text;
}

// One line for each effect among the rows: its best plan known, and what is proved of it.
std::string optima_text(const std::vector<Row>& rows) {
  std::map<Effect, Optimum> optima;
  for (const Row& row : rows) {
    if (row.optimum) optima[row.effect] = *row.optimum;
  }
  std::string text;
  for (const auto& [effect, optimum] : optima) {
    text += fmt::format("best {} plan known: {}", name_of(effect), human_time(optimum.iteration_ns));
    if (optimum.bound_ns) {
      text += fmt::format("; lower bound {} ({})", human_time(*optimum.bound_ns), optimum.proof);
    }
    text += '\n';
  }
  return text;
}

// Whose messages are outside what a link was measured for, one line for each link.
std::string extrapolated_text(const std::vector<Row>& rows) {
  std::map<std::string, std::string> schemes;  // by link and what was measured
  for (const Row& row : rows) {
    for (const Extrapolation& e : row.extrapolated) {
      std::string& names = schemes[fmt::format("link '{}', measured from {} to {}, is extrapolated by ",
                                               e.link, bytes_text(static_cast<double>(e.measured.smallest)),
                                               bytes_text(static_cast<double>(e.measured.largest)))];
      names += (names.empty() ? "" : ", ") + row.name;
    }
  }
  std::string text;
  for (const auto& [link, names] : schemes) text += link + names + '\n';
  return text;
}

void print_for_people(const Workload& workload, const std::vector<Setting>& settings,
                      const std::vector<std::vector<Row>>& rows, std::optional<std::int64_t> batch_size,
                      const Screen& screen) {
  const WorkloadIndex index(workload);
  std::cout << fmt::format("{}: {} layers, {} tensors, {}; forward {}, backward {}\n",
                           printable(workload.name), index.layer_count, index.tensors.size(),
                           bytes_text(static_cast<double>(index.total_bytes)),
                           human_time(static_cast<double>(index.forward_total)),
                           human_time(static_cast<double>(index.backward_total)));
  for (std::size_t p = 0; p < settings.size(); ++p) {
    const Cluster& cluster = settings[p].cluster;
    const auto coverage = coverage_rate(workload, cluster);
    const std::string nodes = !has_levels(cluster)
                                  ? ""
                                  : fmt::format(" on {} nodes, {} link(s) inside", participants(cluster),
                                                cluster.inside->links.size());
    std::cout << fmt::format("\n{} workers{}, {} link(s){}{}\n", cluster.workers, nodes, cluster.links.size(),
                             settings[p].gigabits ? fmt::format(", {} Gb/s", *settings[p].gigabits) : "",
                             coverage ? fmt::format("; coverage rate {:.3g}", *coverage) : "");
    std::cout << table_of(rows[p], batch_size).text(screen) << infeasible_text(rows[p])
              << optima_text(rows[p]) << choice_text(rows[p]) << extrapolated_text(rows[p]);
  }
  std::cout
      << "\n* fastest; ! changes training: speed says nothing about accuracy, and only schemes whose\n"
         "effect is 'exact' compute what plain data parallelism computes (docs/schemes.md); +NAME: with\n"
         "that compressor. times ddp: how many times as fast as scheme ddp without a compressor; "
         "efficiency:\n"
         "compute time / iteration time; coverage rate: time to send the model once on the first link /\n"
         "compute time."
      << (screen.wide ? "\n" : "\n--wide shows all columns.\n");
}

// What the curves of one setting are measured by: scheme ddp's iteration, or where it is not among the rows, compute.
double unit_of(const std::vector<Row>& rows, bool by_ddp) {
  const auto ddp = std::ranges::find(rows, "ddp", &Row::name);
  if (by_ddp) return ddp->iteration_ns();
  const auto some = std::ranges::find_if(rows, [](const Row& row) { return row.result.has_value(); });
  return some == rows.end() ? 0 : static_cast<double>(some->result->compute_ns);
}

// Each scheme's iteration time over the number of workers or the bandwidth, whichever varies; where both do, a curve
// over the bandwidth for each number of workers.
LineChart scaling_chart(const std::string& title, const Cluster& cluster,
                        const std::vector<std::vector<Row>>& rows, bool over_bandwidth) {
  const bool by_ddp = std::ranges::all_of(rows, [](const std::vector<Row>& point) {
    const auto ddp = std::ranges::find(point, "ddp", &Row::name);
    return ddp != point.end() && ddp->result && ddp->iteration_ns() > 0;
  });
  std::string links;
  for (const Link& link : cluster.links) links += (links.empty() ? "links " : ", ") + link.name;
  LineChart chart{
      .title = title,
      .subtitle = fmt::format("as measured: {} workers, {}; solid: exact, dashed: changes training",
                              cluster.workers, links),
      .x_label = over_bandwidth ? "Gb/s of the first link" : "workers",
      .y_label = by_ddp ? "iteration time / that of ddp" : "iteration time / compute time"};
  const bool both = over_bandwidth && rows.front().front().workers != rows.back().front().workers;
  std::map<std::string, Series> curves;
  for (const std::vector<Row>& point : rows) {
    const double unit = unit_of(point, by_ddp);
    for (const Row& row : point) {
      if (!row.result || !(unit > 0) || !(row.iteration_ns() > 0)) continue;
      const double x = over_bandwidth ? *row.gigabits : static_cast<double>(row.workers);
      const std::string name = both ? fmt::format("{}, {} workers", row.name, row.workers) : row.name;
      Series& series = curves[name];
      series.name = name;
      series.group = static_cast<std::size_t>(row.effect);
      series.dashed = row.effect != Effect::kExact;
      series.points.emplace_back(x, row.iteration_ns() / unit);
    }
  }
  for (auto& [name, series] : curves) {
    std::ranges::sort(series.points);
    chart.series.push_back(std::move(series));
  }
  return chart;
}

// The cluster with as many nodes of so many workers. Errors name `file`.
Cluster with_nodes_of(const Cluster& measured, std::int64_t workers_per_node, const std::string& file) {
  try {
    return with_workers_per_node(measured, workers_per_node);
  } catch (const InvalidInput& error) {
    throw error.within(file);
  }
}

// The measured cluster, were there so many workers and, if given, such a bandwidth. Errors name `file`.
Cluster changed_to(const Cluster& measured, std::int64_t workers, std::optional<double> gigabits,
                   const std::string& file) {
  try {
    if (!gigabits) return scaled_to(measured, workers);
    // One worker, or node, has no bandwidth left to change.
    if (workers == measured.workers / participants(measured))
      return scaled_to(with_bandwidth(measured, *gigabits), workers);
    return with_bandwidth(scaled_to(measured, workers), *gigabits);
  } catch (const InvalidInput& error) {
    throw error.within(file);
  }
}

std::vector<Setting> settings_of(const CompareArguments& arguments, const Cluster& measured) {
  Setting setting{.classes = read_classes(arguments.workloads),
                  .slowest = {},
                  .cluster = {},
                  .gigabits = std::nullopt,
                  .simulation = to_options(arguments.simulation)};
  setting.slowest = slowest_of(setting.classes);
  const auto workers = numbers_of<std::int64_t>(arguments.workers, "--workers", 1, 10'000'000);
  auto per_node = numbers_of<std::int64_t>(arguments.workers_per_node, "--workers-per-node", 1, 10'000'000);
  if (per_node.empty()) per_node.push_back(measured.workers_per_node);
  const auto gigabits =
      numbers_of<double>(arguments.links, "--links", 1e-6, 1e6, Measure::kGigabitsPerSecond);
  std::vector<std::optional<double>> bandwidths(gigabits.begin(), gigabits.end());
  if (bandwidths.empty()) bandwidths.push_back(std::nullopt);
  std::vector<Setting> settings;
  for (const std::int64_t of_node : per_node) {
    const Cluster nodes = with_nodes_of(measured, of_node, arguments.cluster);
    for (const std::int64_t count : workers.empty() ? std::vector{nodes.workers} : workers) {
      for (const std::optional<double> bandwidth : bandwidths) {
        setting.cluster = changed_to(nodes, count, bandwidth, arguments.cluster);
        setting.gigabits = bandwidth;
        settings.push_back(setting);
      }
    }
  }
  return settings;
}

void run_compare(const CompareArguments& arguments, const Outcome& outcome) {
  const bool wanted = results_wanted(arguments.json, {arguments.plot});
  const Cluster measured = read_cluster(arguments.cluster);
  if (!outcome.quiet) tell_what_is_not_modelled(measured);
  const std::vector<Setting> settings = settings_of(arguments, measured);
  if (!arguments.faults.mtbf.empty()) {
    return compare_faults(settings, arguments.faults, measured, arguments.batch_size, arguments.json,
                          outcome);
  }
  const Workload& slowest = settings[0].slowest;
  const std::vector<Method> methods = chosen_methods(arguments.schemes);
  const std::map<std::string, std::string> written = parse_assignments(arguments.set);
  require_known(written, methods);
  const CommonOptions options(written);
  std::vector<std::vector<Row>> rows(settings.size());
  {
    Progress progress(outcome, "comparing");
    for (std::size_t p = 0; p < settings.size(); ++p) {
      for (std::size_t n = 0; n < methods.size(); ++n) {
        progress.say(fmt::format("{}/{} {}", p * methods.size() + n + 1, methods.size() * settings.size(),
                                 methods[n].name));
        rows[p].push_back(compare_one(methods[n], settings[p], options));
      }
      std::ranges::stable_sort(rows[p], {}, &Row::iteration_ns);
      progress.say("optima");
      add_times_ddp(rows[p], settings[p], options);
      add_optima(rows[p], settings[p], options);
    }
  }
  if (!arguments.plot.empty()) {
    const bool over_bandwidth = std::ranges::any_of(
        settings, [&](const Setting& setting) { return setting.gigabits != settings[0].gigabits; });
    write_file(arguments.plot, to_svg(scaling_chart(slowest.name, measured, rows, over_bandwidth)));
  }
  if (!wanted) return;
  if (!arguments.json)
    return print_for_people(slowest, settings, rows, arguments.batch_size, standard_output(outcome.wide));
  Json objects = Json::array();
  for (std::size_t p = 0; p < rows.size(); ++p) {
    for (const Row& row : rows[p]) objects.push_back(object_of(row, settings[p], arguments.batch_size));
  }
  print({{"workload", summary_of(slowest)},
         {"cluster", summary_of(measured)},
         {"schemes", std::move(objects)}});
}

}  // namespace

void add_compare(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<CompareArguments>();
  CLI::App* command = app.add_subcommand("compare", "Compare all schemes on this workload and cluster");
  add_workload_option(*command, arguments->workloads);
  add_cluster_option(*command, arguments->cluster);
  command
      ->add_option("--schemes", arguments->schemes,
                   "Compare only these, each with its own options: 'ddp,dear compressor=int8'")
      ->type_name("SCHEME,...");
  command->add_option("--workers", arguments->workers, "Predict for these numbers of workers")
      ->type_name("P,...");
  command
      ->add_option("--workers-per-node", arguments->workers_per_node,
                   "Predict for these numbers of workers on each node; the cluster needs links inside nodes")
      ->type_name("P,...");
  command
      ->add_option(
          "--links", arguments->links,
          "Predict for these bandwidths of the first link in Gb/s (or 400Mb/s, ...), others in proportion")
      ->type_name("GBPS,...");
  add_batch_size_option(*command, arguments->batch_size);
  add_set_option(*command, arguments->set);
  add_simulation_options(*command, arguments->simulation);
  add_output_option(*command, "--plot", arguments->plot, "Write the curves over --workers or --links as SVG");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  add_fault_options(*command, arguments->faults, {"--schemes", "--workers", "--set", "--plot"});
  command->footer(
      "Examples:\n  gradweave compare --workload examples/workloads/deft-table2-vgg19.json \\\n"
      "    --cluster examples/clusters/deft-table2-one-link.json\n"
      "  gradweave compare --workload W --cluster C --workers 8,16,32,64 --plot scaling.svg\n"
      "  gradweave compare --workload W --cluster C --mtbf 6h --islands 8,64,512");
  command->callback([arguments, &outcome] { run_compare(*arguments, outcome); });
}

}  // namespace gradweave::cli
