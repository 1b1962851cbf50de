// gradweave simulate: predict what a plan does.
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include "base/quoted.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "gradweave/json.h"
#include "report/rows.h"

namespace gradweave::cli {
namespace {

struct SimulateArguments {
  std::vector<std::string> workloads;
  std::string cluster, plan, trace, svg, timeline;
  SimulationFlags simulation;
  double svg_us = 0;
  std::int64_t trace_iterations = 6;
  bool json = false;
};

std::string layer_name(const Workload& workload, std::int32_t layer) {
  return layer < 0 ? "(end of iteration)" : workload.layers[static_cast<std::size_t>(layer)].name;
}

void print_for_people(const SimulationResult& result, const Workload& workload, const Screen& screen) {
  const double iteration = result.iteration_ns();
  std::cout << fmt::format(
      "{}: {} per iteration, {} exposed ({:.1f} % over compute)\n", printable(result.name),
      human_time(iteration), human_time(result.exposed_ns),
      result.compute_ns > 0 ? 100 * result.exposed_ns / static_cast<double>(result.compute_ns) : 0.0);
  std::cout << fmt::format("cycle: {} in {} iterations ({}); period {}\n",
                           human_time(static_cast<double>(result.cycle_ns)), result.cycle_iterations,
                           result.method, result.period);
  std::cout << fmt::format(
      "updates per iteration {:.4g}, staleness at most {}, ops per iteration {:.4g}, {} per iteration, "
      "extra memory {}\n\n",
      result.updates_per_iteration, result.staleness_max, result.ops_per_iteration,
      bytes_text(result.bytes_per_iteration), bytes_text(static_cast<double>(result.extra_bytes)));
  Table bounds{.header = {"lower bound", "time", "gap"}, .rows = {}, .left = {}};
  for (const Bound& bound : result.bounds) {
    const bool binds = bound.name == result.lower_bound.name;
    bounds.rows.push_back(
        {bound.name + (binds ? " *" : ""), human_time(bound.iteration_ns),
         bound.iteration_ns > 0 ? fmt::format("{:.2f} %", 100 * (iteration / bound.iteration_ns - 1)) : "-"});
  }
  Table links{.header = {"link", "busy", "use"}, .rows = {}, .left = {}};
  for (const LinkUse& link : result.links) {
    links.rows.push_back({link.link, human_time(link.busy_ns), fmt::format("{:.1f} %", 100 * link.use)});
  }
  std::cout << bounds.text(screen) << '\n' << links.text(screen);
  if (result.exposed_layers.empty()) return;
  Table layers{.header = {"waits before", "exposed", "reason"}, .rows = {}, .left = {true, false, true}};
  for (const ExposedLayer& layer : result.exposed_layers) {
    layers.rows.push_back({layer_name(workload, layer.layer), human_time(layer.exposed_ns), layer.reason});
  }
  std::cout << '\n' << layers.text(screen);
}

SimulationResult simulated(const SimulateArguments& arguments, const Plan& plan,
                           const std::vector<Workload>& classes, const Cluster& cluster) {
  SimulationOptions options = to_options(arguments.simulation);
  if (!arguments.trace.empty() || !arguments.svg.empty() || !arguments.timeline.empty())
    options.timeline_iterations = arguments.trace_iterations;
  SimulationResult result = simulate(plan, classes, cluster, options);
  add_proved_optimum(plan, classes, cluster, result);
  return result;
}

void run_simulate(const SimulateArguments& arguments, const Outcome& outcome) {
  const bool wanted = results_wanted(arguments.json, {arguments.trace, arguments.svg, arguments.timeline});
  std::optional<Progress> progress(std::in_place, outcome, "simulating");
  const std::vector<Workload> classes = read_classes(arguments.workloads);
  const Cluster cluster = read_cluster(arguments.cluster);
  const Plan plan = read_plan(arguments.plan);
  require_valid(validate(plan, slowest_of(classes), &cluster), arguments.plan);
  const SimulationResult result = simulated(arguments, plan, classes, cluster);
  progress.reset();
  if (!outcome.quiet) tell_what_is_not_modelled(cluster);
  if (!arguments.trace.empty()) write_file(arguments.trace, to_chrome_trace({result.timeline}));
  if (!arguments.svg.empty()) {
    const PictureOptions picture{.width_ns = std::llround(arguments.svg_us * 1000),
                                 .iteration_ns = result.iteration_ns()};
    write_file(arguments.svg, to_svg({result.timeline}, picture));
  }
  if (!arguments.timeline.empty()) write_file(arguments.timeline, to_json(result.timeline));
  if (!outcome.quiet) tell(extrapolations(plan, classes.front(), cluster));
  if (arguments.json) {
    print(to_object(result));
  } else if (wanted) {
    print_for_people(result, classes.front(), standard_output(outcome.wide));
  }
}

}  // namespace

void add_simulate(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command =
      app.add_subcommand("simulate", "Predict iteration time, exposed communication and link use of a plan");
  add_file_option(*command, "--plan", arguments->plan, "Plan file");
  add_workload_option(*command, arguments->workloads);
  add_cluster_option(*command, arguments->cluster);
  add_simulation_options(*command, arguments->simulation);
  add_output_option(*command, "--trace", arguments->trace, "Write a timeline that ui.perfetto.dev opens");
  add_output_option(*command, "--svg", arguments->svg, "Write the timeline as a picture");
  add_time_option(*command, "--svg-us", arguments->svg_us,
                  "How much time the picture shows, in microseconds or with a unit; 0: all of it", 0, 1e12);
  add_output_option(*command, "--timeline", arguments->timeline,
                    "Write the timeline as 'gradweave report' and 'diff' read it");
  command
      ->add_option("--trace-iterations", arguments->trace_iterations,
                   "How many iterations the timeline shows")
      ->check(CLI::Range(1, 10000));
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer(
      "Example:\n  gradweave simulate --plan plan.json --workload examples/workloads/deft-table2-vgg19.json "
      "\\\n"
      "    --cluster examples/clusters/deft-table2-one-link.json --trace out.json");
  command->callback([arguments, &outcome] { run_simulate(*arguments, outcome); });
}

}  // namespace gradweave::cli
