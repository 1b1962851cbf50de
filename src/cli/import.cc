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
  std::vector<std::string> files, links, inside;
  std::string inside_link = "inside";
  std::optional<std::int64_t> workers, workers_per_node;
  std::string growth = "linear";
  ResultFlags result;
};

void run_import_kineto(const KinetoArguments& arguments, const Outcome& outcome) {
  results_wanted(arguments.result.json, {arguments.result.output});
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

// Who took part in the runs of some files.
struct Ranks {
  std::optional<std::int64_t> workers, per_node;
};

// Adds the files' runs to the links called `names`: one for all files, or one for each. `workers`: how many took part,
// if that is known. Errors: InvalidInput for runs of different numbers of ranks.
Ranks add_nccl_tests_files(const std::vector<std::string>& files, const std::vector<std::string>& names,
                           std::optional<std::int64_t> workers, std::vector<LinkMeasurements>& links) {
  Ranks ranks{workers, std::nullopt};
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string& file = files[f];
    const std::string& name = names.size() == 1 ? names[0] : names[f];
    auto link = std::ranges::find(links, name, &LinkMeasurements::name);
    if (link == links.end()) link = links.insert(link, {.name = name});
    for (const NcclTestsRun& run : read_nccl_tests(file, ranks.workers)) {
      if (!ranks.workers) ranks.workers = run.workers;
      if (!ranks.per_node && run.workers) ranks.per_node = run.workers_per_node;
      if (run.workers && run.workers != ranks.workers) {
        throw InvalidInput(fmt::format("ran on {} ranks, not on {}", *run.workers, *ranks.workers), file,
                           "give runs with the same number of ranks");
      }
      add_nccl_tests_run(run, *link, file);
    }
  }
  return ranks;
}

void require_workers(const std::optional<std::int64_t>& ranks, const std::string& option) {
  if (!ranks) throw InvalidInput("no file says how many ranks there were", option, "give it");
}

// One level: all ranks on the links of the files.
void import_one_level(const NcclTestsArguments& arguments, const std::vector<std::string>& names,
                      ClusterMeasurements& measured) {
  const Ranks ranks = add_nccl_tests_files(arguments.files, names, arguments.workers, measured.links);
  require_workers(ranks.workers, "--workers");
  measured.workers = *ranks.workers;
  measured.workers_per_node = arguments.workers_per_node.value_or(ranks.per_node.value_or(1));
}

// Two: one rank of each host on the links of the files, and the ranks of one host on those inside.
void import_two_levels(const NcclTestsArguments& arguments, const std::vector<std::string>& names,
                       ClusterMeasurements& measured) {
  measured.inside = {measured.startup_growth, {}};
  const Ranks inside = add_nccl_tests_files(arguments.inside, {arguments.inside_link},
                                            arguments.workers_per_node, measured.inside->links);
  require_workers(inside.workers, "--workers-per-node");
  if (inside.per_node && *inside.per_node != *inside.workers) {
    throw InvalidInput("ran on more than one host", arguments.inside.front(),
                       "give a run of the ranks of one host, e.g. mpirun -n 8 -N 8");
  }
  std::optional<std::int64_t> nodes;
  if (arguments.workers) {
    if (*arguments.workers % *inside.workers != 0)
      throw InvalidInput(
          fmt::format("{} ranks are not whole hosts of {}", *arguments.workers, *inside.workers), "--workers",
          "give the number of all ranks, or leave it out");
    nodes = *arguments.workers / *inside.workers;
  }
  const Ranks between = add_nccl_tests_files(arguments.files, names, nodes, measured.links);
  require_workers(between.workers, "--workers");
  if (between.per_node.value_or(1) != 1) {
    throw InvalidInput(fmt::format("ran on {} ranks of a host", *between.per_node), arguments.files.front(),
                       "with --inside, give a run of one rank on each host, e.g. mpirun -N 1");
  }
  measured.workers_per_node = *inside.workers;
  measured.workers = arguments.workers.value_or(*between.workers * *inside.workers);
}

void run_import_nccl_tests(const NcclTestsArguments& arguments, const Outcome& outcome) {
  results_wanted(arguments.result.json, {arguments.result.output});
  const auto& links = arguments.links;
  if (links.size() > 1 && links.size() != arguments.files.size())
    throw InvalidInput(fmt::format("{} links for {} files", links.size(), arguments.files.size()), "--link",
                       "give one for all files, or one for each in their order");
  if (std::ranges::find(links, "") != links.end())
    throw InvalidInput("is empty", "--link", "give the link a name");
  ClusterMeasurements measured{.startup_growth = static_cast<StartupGrowth>(
                                   std::ranges::find(kStartupGrowths, arguments.growth) - kStartupGrowths),
                               .source = "nccl-tests"};
  const std::vector<std::string> names = links.empty() ? std::vector<std::string>{"nccl"} : links;
  arguments.inside.empty() ? import_one_level(arguments, names, measured)
                           : import_two_levels(arguments, names, measured);
  std::vector<std::string> files = arguments.files;
  files.insert(files.end(), arguments.inside.begin(), arguments.inside.end());
  give(fit_of(measured, files), arguments.result, outcome);
}

void add_import_kineto(CLI::App& parent, Outcome& outcome) {
  auto arguments = std::make_shared<KinetoArguments>();
  CLI::App* command = parent.add_subcommand("kineto", "A workload file from traces of the PyTorch profiler");
  command->add_option("files", arguments->files, "Traces, .json or .json.gz, one for each rank; '-': stdin")
      ->required()
      ->type_name("FILE");
  command->add_option("--name", arguments->name, "Name of the workload")
      ->capture_default_str()
      ->check(short_name());
  add_result_options(*command, arguments->result, "workload file");
  command->footer(
      "Record with torch.profiler.profile(record_shapes=True, with_stack=True); see docs/formats.md.\n"
      "Example:\n  gradweave import kineto rank0.json.gz rank1.json.gz -o workload.json");
  command->callback([arguments, &outcome] { run_import_kineto(*arguments, outcome); });
}

void add_import_nccl_tests(CLI::App& parent, Outcome& outcome) {
  auto arguments = std::make_shared<NcclTestsArguments>();
  CLI::App* command = parent.add_subcommand(
      "nccl-tests",
      "A cluster file from the output of nccl-tests, or from the file that its option -J writes");
  command
      ->add_option("files", arguments->files,
                   "Runs of all_reduce_perf, and of reduce_scatter_perf and all_gather_perf")
      ->required()
      ->type_name("FILE");
  command->add_option("--link", arguments->links, "Name of the link: one for all files, or one for each")
      ->allow_extra_args(false)
      ->check(short_name())
      ->type_name("NAME");
  command
      ->add_option("--inside", arguments->inside,
                   "Runs within one host, for a cluster of two levels; the other files then have one rank of "
                   "each host")
      ->allow_extra_args(false)
      ->type_name("FILE");
  command->add_option("--inside-link", arguments->inside_link, "Name of the link inside a host")
      ->capture_default_str()
      ->check(short_name());
  command->add_option("--workers", arguments->workers, "Number of ranks in all, if the files don't list them")
      ->check(CLI::Range(1, 10'000'000));
  command
      ->add_option("--workers-per-node", arguments->workers_per_node,
                   "Number of ranks on one host, if the files don't list them")
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
