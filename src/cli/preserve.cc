// gradweave preserve: whether a plan keeps the accuracy of plain data parallelism.
#include "gradweave/preserve.h"

#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "gradweave/error.h"
#include "gradweave/json.h"

namespace gradweave::cli {
namespace {

struct PreserveArguments {
  std::string workload, plan, measurements;
  Tolerance tolerance;
  bool json = false;
};

double updates_per_iteration(const Updates& updates) {
  return static_cast<double>(updates.steps.size()) / updates.period;
}

Json to_object(const Judgement& judgement) {
  Json blocks = Json::array();
  for (const BlockJudgement& block : judgement.blocks) {
    blocks.push_back({{"share", block.updates.share},
                      {"updates_per_iteration", updates_per_iteration(block.updates)},
                      {"oldest_gradient", oldest_gradient(block.updates)},
                      {"loss_ratio", block.ratio},
                      {"largest_stable_step", block.limit},
                      {"growth", block.growth},
                      {"loss_kept", block.ratio_kept},
                      {"stable", block.stable}});
  }
  return {{"preserves", judgement.preserves()},
          {"step", judgement.step},
          {"plain_largest_stable_step", judgement.plain_limit},
          {"blocks", std::move(blocks)}};
}

void print_for_people(const Judgement& judgement, const Tolerance& tolerance, const Screen& screen) {
  Table table{.header = {"share", "updates per iteration", "oldest gradient", "loss ratio", "stable up to",
                         "growth", "result"},
              .rows = {},
              .left = {false, false, false, false, false, false, true}};
  for (const BlockJudgement& block : judgement.blocks) {
    std::string result = block.ratio_kept ? "" : block.ratio < 1 ? "loss falls behind" : "loss differs";
    if (!block.stable) result += (result.empty() ? "" : ", ") + std::string("too near its limit");
    table.rows.push_back({fmt::format("{:.1f} %", 100 * block.updates.share),
                          fmt::format("{:.4g}", updates_per_iteration(block.updates)),
                          std::to_string(oldest_gradient(block.updates)), fmt::format("{:.4f}", block.ratio),
                          fmt::format("{:.4g}", block.limit), fmt::format("{:.4f}", block.growth),
                          result.empty() ? "kept" : result});
  }
  std::cout << table.text(screen) << '\n';
  std::cout << fmt::format(
      "learning rate x curvature is {:.4g}; plain data parallelism is stable up to {:.4g}; a plan may use "
      "{:.0f} % of its own limit\n",
      judgement.step, judgement.plain_limit, 100 * tolerance.step);
  if (judgement.preserves()) {
    std::cout << "the plan keeps the accuracy of plain data parallelism\n";
  } else if (judgement.step >= judgement.plain_limit) {
    std::cout
        << "the plan does not keep the accuracy, and plain data parallelism would diverge too: lower the "
           "learning rate\n";
  } else {
    std::cout << "the plan does not keep the accuracy: use an exact one (gradweave plan --scheme auto), or "
                 "lower the learning rate where a row is too near its limit\n";
  }
}

void run_preserve(const PreserveArguments& arguments, Outcome& outcome) {
  const Judgement judgement = [&] {
    const Progress progress(outcome, "judging");
    const Workload workload = read_workload(arguments.workload);
    const Plan plan = read_plan(arguments.plan);
    require_valid(validate(plan, workload), arguments.plan);
    return judge(plan, workload, read_measurements(arguments.measurements), arguments.tolerance);
  }();
  if (arguments.json) {
    print(to_object(judgement));
  } else {
    print_for_people(judgement, arguments.tolerance, standard_output(outcome.wide));
  }
  outcome.exit_code = judgement.preserves() ? 0 : 1;
}

}  // namespace

void add_preserve(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<PreserveArguments>();
  CLI::App* command =
      app.add_subcommand("preserve", "Judge whether a plan keeps the accuracy of plain data parallelism");
  add_file_option(*command, "--plan", arguments->plan, "Plan file");
  add_file_option(*command, "--workload", arguments->workload, "Workload file");
  add_file_option(*command, "--measurements", arguments->measurements, "Measurements of the training");
  command
      ->add_option("--tolerance", arguments->tolerance.loss, "How far the ratio of the losses may be from 1")
      ->check(in_range(0, 1))
      ->capture_default_str();
  command
      ->add_option("--stable-share", arguments->tolerance.step,
                   "Share of the largest stable learning rate that a plan may use")
      ->check(in_range(0, 1))
      ->capture_default_str();
  command
      ->add_option("--iterations", arguments->tolerance.iterations,
                   "Iterations over which losses are compared; 0: one period")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer(
      "Example:\n  gradweave preserve --plan plan.json --workload examples/workloads/deft-table2-vgg19.json "
      "\\\n"
      "    --measurements examples/measurements/sgd.json\n"
      "Exit code 1 if the plan may lose accuracy.");
  command->callback([arguments, &outcome] { run_preserve(*arguments, outcome); });
}

}  // namespace gradweave::cli
