// gradweave fit: links' start-up and per-byte cost from measurements.
#include "gradweave/fit.h"

#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/imported.h"
#include "cli/inputs.h"
#include "gradweave/error.h"
#include "gradweave/json.h"

namespace gradweave::cli {
namespace {

struct FitArguments {
  std::string measurements;
  ResultFlags result;
};

}  // namespace

void add_fit(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<FitArguments>();
  CLI::App* command =
      app.add_subcommand("fit", "Find the start-up and per-byte cost of each link from measurements");
  add_file_option(*command, "measurements", arguments->measurements, "Link measurements file");
  add_result_options(*command, arguments->result, "cluster file");
  command->footer("Example:\n  gradweave fit examples/links/two-nics.json -o cluster.json");
  command->callback([arguments, &outcome] {
    results_wanted(arguments->result.json, {arguments->result.output});
    const ClusterMeasurements measured = read_link_measurements(arguments->measurements);
    give(fit_of(measured, {arguments->measurements}), arguments->result, outcome);
  });
}

}  // namespace gradweave::cli
