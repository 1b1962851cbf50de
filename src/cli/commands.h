// The commands of `gradweave`, one file each. A command adds its options to the application; its callback
// writes results to stdout and throws gradweave::Error for bad input.
#pragma once

#include <CLI/App.hpp>

namespace gradweave::cli {

// What main and a command share: how it speaks, and how it ends when nothing is thrown.
struct Outcome {
  bool quiet = false;  // nothing on stderr but errors
  bool wide = false;   // tables with all their columns
  int exit_code = 0;   // 0 success, 1 a failed check
};

void add_plan(CLI::App& app, Outcome& outcome);
void add_simulate(CLI::App& app, Outcome& outcome);
void add_compare(CLI::App& app, Outcome& outcome);
void add_validate(CLI::App& app, Outcome& outcome);
void add_preserve(CLI::App& app, Outcome& outcome);
void add_import(CLI::App& app, Outcome& outcome);
void add_fit(CLI::App& app, Outcome& outcome);
void add_report(CLI::App& app, Outcome& outcome);
void add_diff(CLI::App& app, Outcome& outcome);
void add_meet(CLI::App& app, Outcome& outcome);
void add_schemes(CLI::App& app, Outcome& outcome);

}  // namespace gradweave::cli
