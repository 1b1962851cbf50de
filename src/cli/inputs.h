// Options that several commands share, and how their values are read.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/plan.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "gradweave/workload.h"
#include "report/rows.h"

namespace gradweave::cli {

// Adds --workload (repeatable: one file for each class of workers) and returns nothing; values land in
// `paths`.
void add_workload_option(CLI::App& command, std::vector<std::string>& paths, bool required = true);
// Adds `name`, the path of one file, which is `what`.
void add_file_option(CLI::App& command, const std::string& name, std::string& path, const std::string& what,
                     bool required = true);
void add_cluster_option(CLI::App& command, std::string& path, bool required = true);
// Returns what refuses an empty name, as a variable of the shell that isn't set gives. For files to write.
CLI::Validator file_name();
// Errors: InvalidInput where a result would go into one of the command's inputs, or into the file of another result.
void check_outputs(CLI::App& command);
// Adds `name`, the path of a file to write.
void add_output_option(CLI::App& command, const std::string& name, std::string& path,
                       const std::string& what);
// Adds `name`, a time from `low` to `high` in microseconds, or with a unit.
void add_time_option(CLI::App& command, const std::string& name, double& us, const std::string& what,
                     double low, double high);
// Returns what refuses numbers outside of [low, high], and what is none (CLI::Range() lets "nan" pass).
CLI::Validator in_range(double low, double high);
// Returns what refuses a name that is too long for files.
CLI::Validator short_name();
// Adds `name`, one of `names`, which must outlive the call.
void add_choice_option(CLI::App& command, const std::string& name, std::string& value,
                       const std::string& what, std::span<const std::string_view> names);
void add_set_option(CLI::App& command, std::vector<std::string>& assignments);

// Returns whether stdout is free for results: no file of `outputs` is "-". Errors: InvalidInput if more than
// one thing is to go there, counting `json`.
bool results_wanted(bool json, const std::vector<std::string>& outputs);

// Reads one workload for each class of workers. Errors: InvalidInput naming the file.
std::vector<Workload> read_classes(const std::vector<std::string>& paths);

// Returns name -> value. Errors: InvalidInput for an assignment without '=' or a name given twice.
std::map<std::string, std::string> parse_assignments(const std::vector<std::string>& assignments);

// Says on stderr what is extrapolated.
void tell(const std::vector<Extrapolation>& extrapolated);

// Samples of one worker in one iteration, which files don't know: for samples a second.
void add_batch_size_option(CLI::App& command, std::optional<std::int64_t>& batch_size);

// Says on stderr what of the cluster plans and predictions leave out.
void tell_what_is_not_modelled(const Cluster& cluster);

// Options of the simulation: --optimizer-us, --apply-us, --contention, --handover-us, --launch-us, --burst-us.
struct SimulationFlags {
  double optimizer_us = 0;
  double apply_us = 0;
  double contention = 1;
  double handover_us = 0;
  double launch_us = 0;
  double burst_us = 0;
};
void add_simulation_options(CLI::App& command, SimulationFlags& flags);
SimulationOptions to_options(const SimulationFlags& flags);

}  // namespace gradweave::cli
