// gradweave report: one page of what schemes, plans and measured runs do.
#include "gradweave/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/names.h"
#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/lists.h"
#include "cli/progress.h"
#include "gradweave/json.h"

namespace gradweave::cli {
namespace {

struct ReportArguments {
  std::vector<std::string> workloads;
  std::string cluster, output;
  std::optional<std::string> baseline;
  std::vector<std::string> schemes, set, plans, timelines, workers, links, startups;
  SimulationFlags simulation;
  std::int64_t iterations = 4;
};

// The cluster, and what schemes and plans do on it.
void read_predictions(const ReportArguments& arguments, bool quiet, ReportInput& input) {
  input.classes = read_classes(arguments.workloads);
  input.cluster = read_cluster(arguments.cluster);
  if (!quiet) tell_what_is_not_modelled(*input.cluster);
  const auto options = parse_assignments(arguments.set);
  input.options = CommonOptions(options);
  // Plans alone are wanted where only they are named.
  if (!arguments.schemes.empty() || arguments.plans.empty()) {
    input.methods = chosen_methods(arguments.schemes);
    require_known(options, input.methods);
  }
  const Workload slowest = slowest_of(input.classes);
  for (const std::string& path : arguments.plans) {
    NamedPlan named{.name = std::filesystem::path(path).filename().string(), .plan = read_plan(path)};
    require_valid(validate(named.plan, slowest, &*input.cluster), path);
    input.plans.push_back(std::move(named));
  }
  input.workers = numbers_of<std::int64_t>(arguments.workers, "--workers", 1, 10'000'000);
  input.gigabits = numbers_of<double>(arguments.links, "--links", 1e-6, 1e6, Measure::kGigabitsPerSecond);
  input.startup_us = numbers_of<double>(arguments.startups, "--startups", 0, 1e9, Measure::kMicroseconds);
}

// Errors: InvalidInput if the baseline that was asked for is none of the page's rows.
void check_baseline(const std::string& baseline, const ReportInput& input) {
  std::vector<std::string_view> rows;
  for (const Method& method : input.methods) rows.push_back(method.name);
  for (const NamedPlan& plan : input.plans) rows.push_back(plan.name);
  for (const Timeline& timeline : input.timelines) rows.push_back(timeline.name);
  if (std::ranges::find(rows, baseline) == rows.end())
    throw InvalidInput(in_quotes(baseline) + " is not a row of the page", "--baseline",
                       choice_of(baseline, rows, "use one of"));
}

void run_report(const ReportArguments& arguments, const Outcome& outcome) {
  ReportInput input{.simulation = to_options(arguments.simulation)};
  input.simulation.timeline_iterations = arguments.iterations;
  if (!arguments.workloads.empty()) read_predictions(arguments, outcome.quiet, input);
  for (const std::string& path : arguments.timelines) input.timelines.push_back(read_timeline(path));
  if (arguments.baseline) check_baseline(input.baseline = *arguments.baseline, input);
  std::string page;
  {
    Progress progress(outcome, "report");
    input.progress = [&](std::size_t done, std::size_t total) {
      progress.say(fmt::format("report: {} %", 100 * done / total));
    };
    page = report_page(input);
  }
  write_file(arguments.output.empty() ? "-" : arguments.output, page);
}

}  // namespace

void add_report(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = app.add_subcommand(
      "report", "Write one HTML page: timelines, waits, schemes, what-ifs, what to do next");
  add_workload_option(*command, arguments->workloads, false);
  add_cluster_option(*command, arguments->cluster, false);
  command->get_option("--workload")->needs("--cluster");
  command->get_option("--cluster")->needs("--workload");
  command
      ->add_option("--schemes", arguments->schemes,
                   "Show only these, each with its own options: 'ddp,dear compressor=int8'")
      ->type_name("SCHEME,...");
  add_set_option(*command, arguments->set);
  command
      ->add_option("--plan", arguments->plans,
                   "Plan file; repeatable. Without --schemes the page shows only these")
      ->take_all()
      ->type_name("FILE");
  command->add_option("--timeline", arguments->timelines, "Measured timeline; repeatable")
      ->take_all()
      ->type_name("FILE");
  command
      ->add_option("--baseline", arguments->baseline,
                   "The row that the others are compared with; default: ddp")
      ->type_name("NAME");
  command->add_option("--workers", arguments->workers, "Values of the slider for workers")
      ->type_name("P,...");
  command
      ->add_option("--links", arguments->links,
                   "Values of the slider for bandwidth, in Gb/s of the first link")
      ->type_name("GBPS,...");
  command
      ->add_option("--startups", arguments->startups,
                   "Values of the slider for start-up, in microseconds on the first link")
      ->type_name("US,...");
  command->add_option("--trace-iterations", arguments->iterations, "How many iterations the timelines show")
      ->check(CLI::Range(1, 10000));
  add_simulation_options(*command, arguments->simulation);
  add_output_option(*command, "-o,--output", arguments->output,
                    "Write the page to this file instead of stdout");
  command->footer(
      "Examples:\n  gradweave report --workload examples/workloads/resnet50.json \\\n"
      "    --cluster examples/clusters/eth-10g-16.json -o report.html\n"
      "  gradweave report --timeline rank0.json --timeline rank1.json -o report.html");
  command->callback([arguments, &outcome] { run_report(*arguments, outcome); });
}

}  // namespace gradweave::cli
