#include "cli/imported.h"

#include <fmt/format.h>

#include <iostream>

#include "base/quoted.h"
#include "base/text.h"
#include "cli/output.h"
#include "gradweave/json.h"

namespace gradweave::cli {
namespace {

// `text` is the file made, `kind` its name, `findings` what it rests on.
void give_file(const std::string& text, const ResultFlags& flags, const char* kind, Json findings) {
  if (!flags.output.empty()) write_file(flags.output, text);
  if (flags.json) {
    findings[kind] = Json::parse(text);
    print(findings);
  } else if (flags.output.empty()) {
    std::cout << text;
  }
}

Json to_object(const FittedLine& line) {
  return {{"link", line.link},
          {"collective", name_of(line.collective)},
          {"startup_us", line.fit.startup_us},
          {"us_per_byte", line.fit.us_per_byte},
          {"measurements", line.measurements},
          {"smallest_bytes", line.smallest},
          {"largest_bytes", line.largest},
          {"residual", line.fit.residual},
          {"worst", line.fit.worst},
          {"worst_bytes", line.fit.worst_bytes},
          {"doubts", line.doubts}};
}

std::string table_of(const std::vector<FittedLine>& lines) {
  Table table{.header = {"link", "collective", "start-up", "rate", "from", "to", "residual", "worst", "at"},
              .rows = {},
              .left = {true, true}};
  std::string doubts;
  for (const FittedLine& line : lines) {
    const LinkFit& fit = line.fit;
    table.rows.push_back(
        {line.link, std::string(name_of(line.collective)), human_time(1000 * fit.startup_us),
         fit.us_per_byte > 0 ? fmt::format("{}/s", bytes_text(1e6 / fit.us_per_byte)) : "-",
         bytes_text(static_cast<double>(line.smallest)), bytes_text(static_cast<double>(line.largest)),
         fmt::format("{:.1f} %", 100 * fit.residual), fmt::format("{:+.1f} %", 100 * fit.worst),
         bytes_text(static_cast<double>(fit.worst_bytes))});
    for (const std::string& doubt : line.doubts)
      doubts += fmt::format("{}, {}: {}\n", line.link, name_of(line.collective), doubt);
  }
  return table.text() + doubts + "messages below 'from' or above 'to' are extrapolated\n";
}

}  // namespace

void add_result_options(CLI::App& command, ResultFlags& flags, const std::string& what) {
  command.add_option("-o,--output", flags.output, "Write the " + what + " to this file instead of stdout")
      ->check(file_name())
      ->type_name("FILE");
  command.add_flag("--json", flags.json, "Print one JSON object: the " + what + " and how it was found");
}

ClusterFit fit_of(const ClusterMeasurements& measured, const std::vector<std::string>& files) try {
  return fit_cluster(measured);
} catch (const InvalidInput& error) {
  throw error.within(fmt::format("{}", fmt::join(files, ", ")));
}

void give(const ClusterFit& fit, const ResultFlags& flags, const Outcome& outcome) {
  Json lines = Json::array();
  for (const FittedLine& line : fit.lines) lines.push_back(to_object(line));
  give_file(to_json(fit.cluster), flags, "cluster", {{"fits", std::move(lines)}});
  if (!flags.json && !outcome.quiet) std::cerr << table_of(fit.lines);
}

void give(const ImportedWorkload& imported, const ResultFlags& flags, const Outcome& outcome) {
  give_file(to_json(imported.workload), flags, "workload",
            {{"ranks", imported.ranks},
             {"iterations", imported.iterations},
             {"left_out", imported.left_out},
             {"damaged", imported.damaged},
             {"notes", imported.notes}});
  if (flags.json || outcome.quiet) return;
  const WorkloadIndex index(imported.workload);
  std::cerr << fmt::format("{} layers, {} tensors, {}; forward {}, backward {}; {} of {} rank(s)\n",
                           index.layer_count, index.tensors.size(),
                           bytes_text(static_cast<double>(index.total_bytes)),
                           human_time(static_cast<double>(index.forward_total)),
                           human_time(static_cast<double>(index.backward_total)),
                           fmt::format("{} iteration(s)", imported.iterations), imported.ranks);
  if (imported.left_out > 0)
    std::cerr << fmt::format("{} iteration(s) left out: incomplete, or with other layers than most\n",
                             imported.left_out);
  if (imported.damaged > 0)
    std::cerr << fmt::format("{} place(s) could not be read and were skipped\n", imported.damaged);
  for (const std::string& note : imported.notes) std::cerr << printable(note) << '\n';
}

}  // namespace gradweave::cli
