// gradweave import: workload and cluster files from other tools' traces and measurements.
#include "gradweave/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "cli/commands.h"
#include "cli/imported.h"
#include "cli/inputs.h"
#include "cli/progress.h"
#include "gradweave/error.h"
#include "model/cluster_parts.h"

namespace gradweave::cli {
namespace {

struct KinetoArguments {
  std::vector<std::string> files;
  std::string name = "imported";
  ResultFlags result;
};

struct NcclTestsArguments {
  std::vector<std::string> files, links;
  std::optional<std::int64_t> workers, workers_per_node;
  std::string growth = "linear";
  ResultFlags result;
};

void run_import_kineto(const KinetoArguments& arguments, const Outcome& outcome) {
  const ImportedWorkload imported = [&] {
    Progress progress(outcome, "reading");
    const auto say = [&](std::size_t file, std::int64_t bytes) {
      progress.say(fmt::format("{}/{} {} {} MB", file + 1, arguments.files.size(), arguments.files[file],
                               bytes / 1'000'000));
    };
    return import_kineto({arguments.files.begin(), arguments.files.end()}, arguments.name, say);
  }();
  give(imported, arguments.result, outcome);
}

// The run's measurements go to `link`, whose `file` errors name.
void add_nccl_tests_run(const NcclTestsRun& run, LinkMeasurements& link, const std::string& file) {
  auto& list = run.collective == Collective::kAllReduce       ? link.all_reduce
               : run.collective == Collective::kReduceScatter ? link.reduce_scatter
                                                              : link.all_gather;
  if (!list.empty()) {
    throw InvalidInput(fmt::format("is a second run of {} on link '{}'", name_of(run.collective), link.name),
                       file, "give one, or name each file's link with --link");
  }
  list = run.measurements;
}

void run_import_nccl_tests(const NcclTestsArguments& arguments, const Outcome& outcome) {
  const auto& links = arguments.links;
  if (links.size() > 1 && links.size() != arguments.files.size())
    throw InvalidInput(fmt::format("{} links for {} files", links.size(), arguments.files.size()), "--link",
                       "give one for all files, or one for each in their order");
  ClusterMeasurements measured{.startup_growth = static_cast<StartupGrowth>(
                                   std::ranges::find(kStartupGrowths, arguments.growth) - kStartupGrowths),
                               .source = "nccl-tests"};
  std::optional<std::int64_t> workers = arguments.workers, per_node = arguments.workers_per_node;
  for (std::size_t f = 0; f < arguments.files.size(); ++f) {
    const std::string& file = arguments.files[f];
    const std::string name = links.empty() ? "nccl" : links.size() == 1 ? links[0] : links[f];
    auto link = std::ranges::find(measured.links, name, &LinkMeasurements::name);
    if (link == measured.links.end()) link = measured.links.insert(link, {.name = name});
    for (const NcclTestsRun& run : read_nccl_tests(file)) {
      if (!workers) workers = run.workers;
      if (!per_node && run.workers) per_node = run.workers_per_node;
      if (run.workers && run.workers != workers) {
        throw InvalidInput(fmt::format("ran on {} ranks, not on {}", *run.workers, *workers), file,
                           "give runs with the same number of ranks");
      }
      add_nccl_tests_run(run, *link, file);
    }
  }
  if (!workers) throw InvalidInput("no file says how many ranks there were", "--workers", "give it");
  measured.workers = *workers;
  measured.workers_per_node = per_node.value_or(1);
  give(fit_cluster(measured), arguments.result, outcome);
}

void add_import_kineto(CLI::App& parent, Outcome& outcome) {
  auto arguments = std::make_shared<KinetoArguments>();
  CLI::App* command = parent.add_subcommand("kineto", "A workload file from traces of the PyTorch profiler");
  command->add_option("files", arguments->files, "Traces, .json or .json.gz, one for each rank; '-': stdin")
      ->required()
      ->type_name("FILE");
  command->add_option("--name", arguments->name, "Name of the workload")->capture_default_str();
  add_result_options(*command, arguments->result, "workload file");
  command->footer(
      "Record with torch.profiler.profile(record_shapes=True, with_stack=True); see docs/formats.md.\n"
      "Example:\n  gradweave import kineto rank0.json.gz rank1.json.gz -o workload.json");
  command->callback([arguments, &outcome] { run_import_kineto(*arguments, outcome); });
}

void add_import_nccl_tests(CLI::App& parent, Outcome& outcome) {
  auto arguments = std::make_shared<NcclTestsArguments>();
  CLI::App* command =
      parent.add_subcommand("nccl-tests", "A cluster file from what nccl-tests print, or write with -J");
  command
      ->add_option("files", arguments->files,
                   "Runs of all_reduce_perf, and of reduce_scatter_perf and all_gather_perf")
      ->required()
      ->type_name("FILE");
  command->add_option("--link", arguments->links, "Name of the link: one for all files, or one for each")
      ->type_name("NAME");
  command->add_option("--workers", arguments->workers, "Number of ranks, if the files don't list them")
      ->check(CLI::Range(1, 10'000'000));
  command->add_option("--workers-per-node", arguments->workers_per_node, "The same of one host")
      ->check(CLI::Range(1, 10'000'000));
  add_choice_option(*command, "--startup-growth", arguments->growth,
                    "How the start-up grows with the number of workers", kStartupGrowths);
  add_result_options(*command, arguments->result, "cluster file");
  command->footer(
      "Example:\n  gradweave import nccl-tests all_reduce.txt reduce_scatter.txt all_gather.txt -o "
      "cluster.json");
  command->callback([arguments, &outcome] { run_import_nccl_tests(*arguments, outcome); });
}

}  // namespace

void add_import(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand(
      "import", "Make workload and cluster files from other tools' traces and measurements");
  command->require_subcommand(1);
  add_import_kineto(*command, outcome);
  add_import_nccl_tests(*command, outcome);
}

}  // namespace gradweave::cli
