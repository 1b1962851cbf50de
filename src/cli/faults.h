// gradweave compare --mtbf: what workers that die leave of training.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "report/fault_rows.h"

namespace gradweave::cli {

struct FaultFlags {
  static constexpr double kNotGiven = -1;

  std::vector<std::string> mtbf, islands;
  std::string compressor = FaultOptions{}.compressor, state_bytes;
  std::int64_t period = FaultOptions{}.period;
  double recovery_us = 1e6 * FaultOptions{}.recovery_s, detection_us = 1e6 * FaultOptions{}.detection_s,
         epoch_us = 1e6 * FaultOptions{}.epoch_s, message_us = 1e6 * FaultOptions{}.message_s,
         checkpoint_every_us = 1e6 * FaultOptions{}.checkpoint_every_s;
  double step_us = kNotGiven, average_us = kNotGiven, write_us = kNotGiven, restart_us = kNotGiven;
};
// Adds --mtbf and what goes with it. --mtbf goes without the options called `others`, which must have been added.
void add_fault_options(CLI::App& command, FaultFlags& flags, const std::vector<std::string>& others);

// Prints a table for each setting, number of islands and mtbf. Errors: InvalidInput.
void compare_faults(const std::vector<Setting>& settings, const FaultFlags& flags, const Cluster& measured,
                    std::optional<std::int64_t> batch_size, bool json, const Outcome& outcome);

}  // namespace gradweave::cli
