#include "cli/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <ranges>
#include <set>
#include <system_error>

#include "base/names.h"
#include "base/quantity.h"
#include "base/quoted.h"
#include "base/text.h"
#include "cli/output.h"
#include "gradweave/error.h"
#include "gradweave/json.h"
#include "io/files.h"
#include "io/json_tree.h"

namespace gradweave::cli {
namespace {

// The one that `path` leads to; none where that is no file of bytes: any number may use a device or a pipe.
std::filesystem::path file_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  if (path.empty() || path == "-" || (fs::exists(status) && !fs::is_regular_file(status))) return {};
  fs::path found = fs::weakly_canonical(target_of(path), failed);
  return failed ? fs::path() : found;
}

constexpr const char* kOutput = "output";  // what the check of files to write is called

bool is_output(CLI::Option& option) try {
  return option.get_validator(kOutput) != nullptr;
} catch (const CLI::OptionNotFound&) {
  return false;
}

}  // namespace

void add_workload_option(CLI::App& command, std::vector<std::string>& paths, bool required) {
  command
      .add_option("--workload", paths,
                  "Workload file; repeat it for classes of workers with times of their own")
      ->required(required)
      ->take_all()
      ->type_name("FILE");
}

void add_file_option(CLI::App& command, const std::string& name, std::string& path, const std::string& what,
                     bool required) {
  command.add_option(name, path, what)->required(required)->type_name("FILE");
}

void add_cluster_option(CLI::App& command, std::string& path, bool required) {
  add_file_option(command, "--cluster", path, "Cluster file", required);
}

CLI::Validator file_name() {
  const auto check = [](const std::string& given) -> std::string {
    return given.empty() ? "give the name of a file" : "";
  };
  return {check, "", kOutput};
}

void check_outputs(CLI::App& command) {
  std::set<std::filesystem::path> inputs, outputs;
  const std::vector<CLI::Option*> options = command.get_options([](const CLI::Option*) { return true; });
  for (CLI::Option* option : options) {
    if (option->get_type_name() != "FILE" || is_output(*option)) continue;
    for (const std::string& path : option->results()) inputs.insert(file_of(path));
  }
  for (CLI::Option* option : options) {
    if (!is_output(*option)) continue;
    for (const std::string& path : option->results()) {
      const std::filesystem::path file = file_of(path);
      if (file.empty()) continue;
      if (inputs.contains(file))
        throw InvalidInput("is an input, and would be overwritten", path, "give the result another file");
      if (!outputs.insert(file).second)
        throw InvalidInput("more than one result would go into this file", path, "give each its own");
    }
  }
}

void add_output_option(CLI::App& command, const std::string& name, std::string& path,
                       const std::string& what) {
  command.add_option(name, path, what + "; '-': to stdout, in place of the results")
      ->check(file_name())
      ->type_name("FILE");
}

void add_time_option(CLI::App& command, const std::string& name, double& us, const std::string& what,
                     double low, double high) {
  const auto read = [=](std::string& text) -> std::string {
    const std::string remedy = unit_remedy(text, Measure::kMicroseconds);
    if (!remedy.empty()) return in_quotes(text) + " has an unknown unit; " + remedy;
    const std::optional<double> time = quantity(text, Measure::kMicroseconds);
    if (!time || !(*time >= low && *time <= high)) {
      return in_quotes(text) +
             fmt::format(" is not a time in range; give microseconds from {} to {}, or one with a unit of ",
                         low, high) +
             units_of(Measure::kMicroseconds);
    }
    text = without_unit(text, Measure::kMicroseconds);
    return {};
  };
  command.add_option(name, us, what)->transform(CLI::Validator(read, ""))->type_name("TIME");
}

CLI::Validator in_range(double low, double high) {
  const std::string range = fmt::format("[{} - {}]", low, high);
  const auto check = [=](std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return {};
    return "Value " + text + " not in range " + range;
  };
  return {check, "FLOAT in " + range};
}

CLI::Validator short_name() {
  const auto check = [](const std::string& name) -> std::string {
    if (name.size() <= kMaxNameBytes) return {};
    return fmt::format("is longer than {} bytes; shorten it", kMaxNameBytes);
  };
  return {check, ""};
}

void add_choice_option(CLI::App& command, const std::string& name, std::string& value,
                       const std::string& what, std::span<const std::string_view> names) {
  const auto check = [names](const std::string& word) -> std::string {
    if (std::ranges::find(names, word) != names.end()) return {};
    return in_quotes(word) + " is unknown; " + choice_of(word, names, "use one of");
  };
  command.add_option(name, value, what + ": " + listed(names))
      ->check(CLI::Validator(check, ""))
      ->type_name("NAME")
      ->capture_default_str();
}

bool results_wanted(bool json, const std::vector<std::string>& outputs) {
  const auto streams = std::ranges::count(outputs, "-");
  if (streams + (json ? 1 : 0) > 1) {
    throw InvalidInput("more than one result would go to standard output", "stdout",
                       "give '-' once, and no --json with it; the others need files");
  }
  return streams == 0;
}

void add_set_option(CLI::App& command, std::vector<std::string>& assignments) {
  command.add_option("--set", assignments, "An option of the scheme; 'gradweave schemes' lists them")
      ->take_all()
      ->type_name("NAME=VALUE");
}

std::vector<Workload> read_classes(const std::vector<std::string>& paths) {
  std::vector<Workload> classes;
  for (const std::string& path : paths) {
    classes.push_back(read_workload(path));
    try {
      slowest_of({classes.front(), classes.back()});
    } catch (const InvalidInput& error) {
      throw error.within(path);
    }
  }
  return classes;
}

std::map<std::string, std::string> parse_assignments(const std::vector<std::string>& assignments) {
  std::map<std::string, std::string> values;
  for (const std::string& assignment : assignments) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InvalidInput(in_quotes(assignment) + " is not an assignment", "--set", "write it as name=value");
    }
    const std::size_t comma = assignment.find(',', equals);
    if (comma != std::string::npos && assignment.find('=', comma) != std::string::npos)
      throw InvalidInput(in_quotes(assignment) + " is more than one assignment", "--set",
                         "give --set once for each option: --set " + assignment.substr(0, comma) + " --set " +
                             assignment.substr(comma + 1));
    if (!values.emplace(assignment.substr(0, equals), assignment.substr(equals + 1)).second) {
      throw InvalidInput(in_quotes(assignment.substr(0, equals)) + " is set twice", "--set", "set it once");
    }
  }
  return values;
}

void tell(const std::vector<Extrapolation>& extrapolated) {
  for (const Extrapolation& e : extrapolated) {
    const auto range = [](const MeasuredBytes& bytes) {
      return bytes_text(static_cast<double>(bytes.smallest)) + " to " +
             bytes_text(static_cast<double>(bytes.largest));
    };
    std::cerr << "link '" << printable(e.link) << "' is measured for messages of " << range(e.measured)
              << ", the plan sends " << range(e.sent) << ": the rest is extrapolated\n";
  }
}

void add_batch_size_option(CLI::App& command, std::optional<std::int64_t>& batch_size) {
  command
      .add_option("--batch-size", batch_size,
                  "Samples that each worker computes in an iteration; adds samples per second")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->type_name("N");
}

void tell_what_is_not_modelled(const Cluster& cluster) {
  if (const std::string left_out = not_modelled(cluster); !left_out.empty())
    std::cerr << printable(left_out) << '\n';
}

void add_simulation_options(CLI::App& command, SimulationFlags& flags) {
  add_time_option(command, "--optimizer-us", flags.optimizer_us,
                  "Time of one whole optimizer step, in microseconds or with a unit", 0, 1e12);
  add_time_option(command, "--apply-us", flags.apply_us,
                  "By how much a step of a part of the model (in the forward or the backward) takes longer "
                  "than its share of a whole step, in microseconds or with a unit",
                  0, 1e12);
  command
      .add_option("--contention", flags.contention,
                  "How many times longer compute takes while a link is busy")
      ->check(in_range(1, 1000));
  add_time_option(
      command, "--handover-us", flags.handover_us,
      "Time from when an op is ready until an idle link starts it, in microseconds or with a unit", 0, 1e12);
  add_time_option(
      command, "--launch-us", flags.launch_us,
      "Compute time that a message takes if it starts beside compute, in microseconds or with a unit", 0,
      1e12);
  add_time_option(
      command, "--burst-us", flags.burst_us,
      "How long each link sends at its usual rate what it has saved up while idle or while a message starts "
      "up (its token bucket), in microseconds or with a unit",
      0, 1e12);
}

SimulationOptions to_options(const SimulationFlags& flags) {
  SimulationOptions options;
  options.optimizer_ns = std::llround(flags.optimizer_us * 1000);
  options.apply_ns = std::llround(flags.apply_us * 1000);
  options.contention = decimal_from_double(flags.contention, "--contention");
  options.handover_ns = std::llround(flags.handover_us * 1000);
  options.launch_ns = std::llround(flags.launch_us * 1000);
  options.burst_ns = std::llround(flags.burst_us * 1000);
  return options;
}

}  // namespace gradweave::cli
