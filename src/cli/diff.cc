// gradweave diff: where two timelines part.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "base/quoted.h"
#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/output.h"
#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/timeline.h"

namespace gradweave::cli {
namespace {

constexpr std::size_t kMostRows = 20;

struct DiffArguments {
  std::string a, b;
  double tolerance = 0.01;
  bool json = false;
};

Json time_or_null(std::optional<double> nanoseconds) {
  return nanoseconds ? Json(microseconds_rounded(*nanoseconds)) : Json();
}

Json interval_or_null(const std::optional<std::pair<Nanoseconds, Nanoseconds>>& interval) {
  if (!interval) return nullptr;
  return {microseconds_of(interval->first), microseconds_of(interval->second)};
}

Json object_of(const std::vector<TimelineDifference>& differences) {
  Json list = Json::array();
  for (const TimelineDifference& row : differences)
    list.push_back({{"what", row.what}, {"a_us", time_or_null(row.a_ns)}, {"b_us", time_or_null(row.b_ns)}});
  return list;
}

Json object_of(const Timeline& timeline, const TimelineFigures& figures) {
  return {{"name", timeline.name},
          {"origin", timeline.origin},
          {"iterations", figures.iterations},
          {"iteration_us", microseconds_rounded(figures.iteration_ns)},
          {"exposed_us", microseconds_rounded(figures.exposed_ns)}};
}

Json object_of(const Timeline& a, const Timeline& b, const TimelineDiff& diff) {
  Json parting;
  if (diff.parting) {
    parting = {{"iteration", diff.parting->iteration},
               {"what", diff.parting->what},
               {"a_us", interval_or_null(diff.parting->a)},
               {"b_us", interval_or_null(diff.parting->b)}};
  }
  return {{"a", object_of(a, diff.a)},
          {"b", object_of(b, diff.b)},
          {"parts", std::move(parting)},
          {"kinds", object_of(diff.kinds)},
          {"spans", object_of(diff.largest)}};
}

std::string cell(std::optional<double> nanoseconds) { return nanoseconds ? human_time(*nanoseconds) : "-"; }

std::string signed_time(double nanoseconds) { return (nanoseconds > 0 ? "+" : "") + human_time(nanoseconds); }

std::string table_of(const std::string& title, const std::vector<TimelineDifference>& differences) {
  Table table{.header = {title, "a", "b", "b - a"}, .rows = {}, .left = {}};
  for (const TimelineDifference& row : differences) {
    table.rows.push_back(
        {row.what, cell(row.a_ns), cell(row.b_ns), signed_time(row.b_ns.value_or(0) - row.a_ns.value_or(0))});
  }
  return table.text();
}

std::string place(const std::optional<std::pair<Nanoseconds, Nanoseconds>>& interval) {
  if (!interval) return "not there";
  return human_time(static_cast<double>(interval->first)) + " to " +
         human_time(static_cast<double>(interval->second));
}

void print_for_people(const Timeline& a, const Timeline& b, TimelineDiff diff, double tolerance) {
  const auto line = [](const char* name, const Timeline& timeline, const TimelineFigures& figures) {
    std::cout << fmt::format("{}: {} ({}), {} iterations of {}, {} of it waiting\n", name,
                             printable(timeline.name), printable(timeline.origin), figures.iterations,
                             human_time(figures.iteration_ns), human_time(figures.exposed_ns));
  };
  line("a", a, diff.a);
  line("b", b, diff.b);
  if (!diff.parting) {
    std::cout << fmt::format("they agree within {:.4g} % of an iteration\n", 100 * tolerance);
    return;
  }
  const TimelineParting& parting = *diff.parting;
  std::cout << fmt::format("they differ from iteration {} on: {}\n  a: {}\n  b: {}\n\n", parting.iteration,
                           printable(parting.what), place(parting.a), place(parting.b));
  const std::size_t more = diff.largest.size() - std::min(diff.largest.size(), kMostRows);
  diff.largest.resize(diff.largest.size() - more);
  std::cout << table_of("in each iteration", diff.kinds);
  if (!diff.largest.empty()) std::cout << '\n' << table_of("largest differences", diff.largest);
  if (more > 0) std::cout << fmt::format("and {} more, see --json\n", more);
}

Json object_of(const Timeline& timeline, const Stop& stop, const std::string& last) {
  Json heard = Json::array();
  for (const HeardOf& other : stop.heard) {
    heard.push_back({{"rank", other.rank},
                     {"doing", other.doing},
                     {"ops", other.ops},
                     {"ago_us", microseconds_of(other.ago_ns)}});
  }
  return {{"name", timeline.name},
          {"doing", stop.doing},
          {"last", last},
          {"verdict", stop.verdict},
          {"heard", std::move(heard)}};
}

Json place_or_null(const std::optional<PathDiff::Place>& place) {
  if (!place) return nullptr;
  return {{"iteration", place->iteration}, {"what", place->what}, {"a", place->a}, {"b", place->b}};
}

void print_stop(const char* name, const Timeline& timeline, const Stop& stop, const std::string& last) {
  std::cout << fmt::format("{}: {} stopped {}; last: {}\n   {}\n", name, printable(timeline.name),
                           printable(stop.doing), printable(last), printable(stop.verdict));
  for (const HeardOf& other : stop.heard) {
    std::cout << fmt::format("   last heard from rank {} {} before: {}, {} ops ended\n", other.rank,
                             human_time(static_cast<double>(other.ago_ns)), printable(other.doing),
                             other.ops);
  }
}

// Of two ranks whose training stopped: where they left the path that they had in common.
void diff_paths(const Timeline& a, const Timeline& b, bool json, Outcome& outcome) {
  const PathDiff diff = path_diff_of(a, b);
  outcome.exit_code = diff.parting ? 1 : 0;
  if (json) {
    print({{"a", object_of(a, *a.stop, diff.last_a)},
           {"b", object_of(b, *b.stop, diff.last_b)},
           {"parts", place_or_null(diff.parting)},
           {"both_in", place_or_null(diff.both_in)}});
    return;
  }
  print_stop("a", a, *a.stop, diff.last_a);
  print_stop("b", b, *b.stop, diff.last_b);
  if (diff.parting) {
    std::cout << fmt::format("they differ from iteration {} on: {}\n  a: {}\n  b: {}\n",
                             diff.parting->iteration, printable(diff.parting->what),
                             printable(diff.parting->a), printable(diff.parting->b));
  } else if (diff.both_in) {
    std::cout << fmt::format("they do not differ: both began {} of iteration {}, which did not end\n",
                             printable(diff.both_in->what), diff.both_in->iteration);
  } else {
    std::cout << "they do not differ\n";
  }
}

void require_compute(const Timeline& timeline, const std::string& path, const char* option) {
  if (figures_of(timeline).iterations == 0)
    throw InvalidInput("has no compute to compare", path,
                       fmt::format("give {} a timeline of whole iterations", option));
}

void run_diff(const DiffArguments& arguments, Outcome& outcome) {
  const Timeline a = read_timeline(arguments.a), b = read_timeline(arguments.b);
  if (a.stop && b.stop) return diff_paths(a, b, arguments.json, outcome);
  require_compute(a, arguments.a, "a");
  require_compute(b, arguments.b, "b");
  const TimelineDiff diff = diff_of(a, b, arguments.tolerance);
  if (arguments.json) {
    print(object_of(a, b, diff));
  } else {
    print_for_people(a, b, diff, arguments.tolerance);
  }
  outcome.exit_code = diff.parting ? 1 : 0;
}

}  // namespace

void add_diff(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<DiffArguments>();
  CLI::App* command = app.add_subcommand(
      "diff", "Find where two timelines, or two ranks that stopped, begin to differ, and what takes longer");
  add_file_option(*command, "a", arguments->a, "Timeline file");
  add_file_option(*command, "b", arguments->b, "Timeline file");
  command
      ->add_option("--tolerance", arguments->tolerance,
                   "Times agree if they differ by at most this part of a's iteration")
      ->check(in_range(0, 1))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer(
      "Example:\n  gradweave simulate --plan plan.json --workload W --cluster C --timeline predicted.json\n"
      "  gradweave diff predicted.json measured.json\n"
      "  gradweave diff dump/rank-0.json dump/rank-1.json    # what wrap(dump=) has left\n"
      "Exit code 1 if they differ.");
  command->callback([arguments, &outcome] { run_diff(*arguments, outcome); });
}

}  // namespace gradweave::cli
