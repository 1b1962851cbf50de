// gradweave plan: make a plan.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <optional>

#include "base/quoted.h"
#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "gradweave/json.h"
#include "gradweave/preserve.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "report/rows.h"

namespace gradweave::cli {
namespace {

struct PlanArguments {
  std::vector<std::string> workloads;
  std::string cluster, scheme, measurements, output;
  std::vector<std::string> set;
  std::optional<std::int64_t> batch_size;
  bool json = false;
};

// By the measurements, if there are any: then `remark` says what it came to.
PlanResult plan_of(const PlanArguments& arguments, const Workload& workload, const Cluster& cluster,
                   std::string& remark) {
  const SchemeOptions options = parse_options(arguments.scheme, parse_assignments(arguments.set));
  if (arguments.measurements.empty()) return make_plan(workload, cluster, options);
  const Measurements measurements = read_measurements(arguments.measurements);
  auto result = make_preserving_plan(workload, cluster, options, measurements);
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&result)) return *infeasible;
  auto& found = std::get<PreservingPlan>(result);
  if (found.exact_instead) {
    remark = fmt::format("no plan of {} keeps the accuracy ({} tried): this is the best exact plan\n",
                         arguments.scheme, found.attempts);
  } else {
    remark = fmt::format("{} keeps the accuracy at capacity {:.3g} (docs/preserver.md)\n", arguments.scheme,
                         found.capacity);
  }
  return std::move(found.plan);
}

// What the plan comes to, in one line.
std::string figures_text(const Plan& plan, const std::vector<Workload>& classes, const Cluster& cluster,
                         std::optional<std::int64_t> batch_size) {
  const SimulationResult result = simulate(plan, classes, cluster, {.plan_facts = false});
  std::string text = fmt::format("{}: iteration {}", plan.scheme, human_time(result.iteration_ns()));
  if (const auto efficiency = scaling_efficiency(result))
    text += fmt::format(", scaling efficiency {:.1f} %", 100 * *efficiency);
  if (const auto samples = samples_per_second(result, cluster.workers, batch_size))
    text += fmt::format(", {:.0f} samples/s", *samples);
  if (const auto coverage = coverage_rate(slowest_of(classes), cluster))
    text += fmt::format("; {} workers, coverage rate {:.3g}", cluster.workers, *coverage);
  return text + " (simulated)\n";
}

void run_plan(const PlanArguments& arguments, Outcome& outcome) {
  std::string remark;
  std::vector<Extrapolation> extrapolated;
  const PlanResult result = [&] {
    const Progress progress(outcome, "planning " + shortened(arguments.scheme));
    const std::vector<Workload> classes = read_classes(arguments.workloads);
    const Cluster cluster = read_cluster(arguments.cluster);
    const Workload slowest = slowest_of(classes);
    PlanResult made = plan_of(arguments, slowest, cluster, remark);
    if (const std::string left_out = not_modelled(cluster); !left_out.empty()) remark += left_out + '\n';
    if (const Plan* plan = std::get_if<Plan>(&made)) {
      require_sound(validate(*plan, slowest, &cluster), arguments.scheme);
      extrapolated = extrapolations(*plan, slowest, cluster);
      remark += figures_text(*plan, classes, cluster, arguments.batch_size);
    }
    return made;
  }();
  if (!outcome.quiet) {
    std::cerr << remark;
    tell(extrapolated);
  }
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&result)) {
    print({{"starves", infeasible->reason}});
    outcome.exit_code = 1;
    return;
  }
  const std::string text = to_json(std::get<Plan>(result));
  const bool to_stdout = arguments.output.empty() || arguments.output == "-";
  if (!to_stdout) write_file(arguments.output, text);
  if (to_stdout || arguments.json) std::cout << text;
}

}  // namespace

void add_plan(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command =
      app.add_subcommand("plan", "Make a plan: which collective carries what, when and where");
  add_workload_option(*command, arguments->workloads);
  add_cluster_option(*command, arguments->cluster);
  command
      ->add_option("--scheme", arguments->scheme,
                   "The scheme that makes the plan; 'gradweave schemes' lists them")
      ->required()
      ->type_name("SCHEME");
  add_set_option(*command, arguments->set);
  add_batch_size_option(*command, arguments->batch_size);
  add_file_option(*command, "--measurements", arguments->measurements,
                  "Measurements of the training; the plan must keep its accuracy", false);
  command->add_option("-o,--output", arguments->output, "Write the plan to this file instead of stdout")
      ->check(file_name())
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "Print the plan, also with -o");
  command->footer(
      "Example:\n  gradweave plan --workload examples/workloads/deft-table2-vgg19.json \\\n"
      "    --cluster examples/clusters/deft-table2-one-link.json --scheme deft --set max_block_us=22525 -o "
      "plan.json");
  command->callback([arguments, &outcome] { run_plan(*arguments, outcome); });
}

}  // namespace gradweave::cli
