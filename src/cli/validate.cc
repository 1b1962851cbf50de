// gradweave validate: every violation of a plan.
#include <fmt/format.h>

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

namespace gradweave::cli {
namespace {

struct ValidateArguments {
  std::string workload, cluster, plan;
  bool json = false;
};

Json to_object(const Validation& validation) {
  Json violations = Json::array();
  for (const Violation& violation : validation.violations) {
    violations.push_back({{"rule", violation.rule},
                          {"what", violation.what},
                          {"where", violation.where},
                          {"remedy", violation.remedy}});
  }
  Json object = {{"valid", validation.valid()}, {"violations", std::move(violations)}};
  if (validation.valid()) {
    object["mixed_staleness"] = validation.facts.mixed_staleness;
    object["generations_alive"] = validation.facts.generations_alive;
    object["extra_bytes"] = validation.facts.extra_bytes;
  }
  return object;
}

void print_for_people(const Validation& validation) {
  for (const Violation& violation : validation.violations) {
    std::cout << fmt::format("rule {}: {}: {}; {}\n", violation.rule, printable(violation.where),
                             printable(violation.what), printable(violation.remedy));
  }
  if (validation.valid()) {
    std::cout << fmt::format(
        "valid: nothing is lost, and nothing is applied twice; generations alive at once: {}, extra memory: "
        "{}{}\n",
        validation.facts.generations_alive, bytes_text(static_cast<double>(validation.facts.extra_bytes)),
        validation.facts.mixed_staleness ? ", mixed staleness" : "");
  } else {
    std::cout << fmt::format("{} violation(s)\n", validation.violations.size());
  }
}

void run_validate(const ValidateArguments& arguments, Outcome& outcome) {
  const Validation validation = [&] {
    const Progress progress(outcome, "validating");
    const Workload workload = read_workload(arguments.workload);
    std::optional<Cluster> cluster;
    if (!arguments.cluster.empty()) cluster = read_cluster(arguments.cluster);
    return validate(read_plan(arguments.plan), workload, cluster ? &*cluster : nullptr);
  }();
  if (arguments.json) {
    print(to_object(validation));
  } else {
    print_for_people(validation);
  }
  outcome.exit_code = validation.valid() ? 0 : 1;
}

}  // namespace

void add_validate(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<ValidateArguments>();
  CLI::App* command =
      app.add_subcommand("validate", "Prove that a plan loses nothing, or list every violation");
  add_file_option(*command, "--plan", arguments->plan, "Plan file");
  add_file_option(*command, "--workload", arguments->workload, "Workload file");
  add_cluster_option(*command, arguments->cluster, false);
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer(
      "Example:\n  gradweave validate --plan plan.json --workload examples/workloads/deft-table2-vgg19.json\n"
      "Exit code 1 if the plan has a violation.");
  command->callback([arguments, &outcome] { run_validate(*arguments, outcome); });
}

}  // namespace gradweave::cli
