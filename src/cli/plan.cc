// gradweave plan: make a plan.
#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/output.h"
#include "gradweave/json.h"
#include "gradweave/schemes.h"

namespace gradweave::cli {
namespace {

struct PlanArguments {
  std::vector<std::string> workloads;
  std::string cluster, scheme, output;
  std::vector<std::string> set;
  bool json = false;
};

void run_plan(const PlanArguments& arguments, Outcome& outcome) {
  const std::vector<Workload> classes = read_classes(arguments.workloads);
  const Cluster cluster = read_cluster(arguments.cluster);
  const Workload workload = slowest_of(classes);
  const PlanResult result = make_plan(arguments.scheme, workload, cluster, parse_assignments(arguments.set));
  if (const Starves* starves = std::get_if<Starves>(&result)) {
    print({{"starves", starves->reason}});
    outcome.exit_code = 1;
    return;
  }
  const std::string text = to_json(std::get<Plan>(result));
  if (!arguments.output.empty()) write_file(arguments.output, text);
  if (arguments.output.empty() || arguments.json) std::cout << text;
}

}  // namespace

void add_plan(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command =
      app.add_subcommand("plan", "Make a plan: which collective carries what, when and where");
  add_workload_option(*command, arguments->workloads);
  add_cluster_option(*command, arguments->cluster);
  command->add_option("--scheme", arguments->scheme, "Who plans; 'gradweave schemes' lists them")->required();
  add_set_option(*command, arguments->set);
  command->add_option("-o,--output", arguments->output, "Write the plan to this file instead of stdout");
  command->add_flag("--json", arguments->json, "Print the plan, also with -o");
  command->footer(
      "Example:\n  gradweave plan --workload examples/workloads/deft-table2-vgg19.json \\\n"
      "    --cluster examples/clusters/deft-table2-one-link.json --scheme deft --set max_block_us=22525 -o "
      "plan.json");
  command->callback([arguments, &outcome] { run_plan(*arguments, outcome); });
}

}  // namespace gradweave::cli
