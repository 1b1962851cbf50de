// What commands that make files of measurements share: where the file goes, and what people are told of it.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "gradweave/fit.h"
#include "gradweave/import.h"

namespace gradweave::cli {

struct ResultFlags {
  std::string output;
  bool json = false;
};

// Adds -o and --json; `what` is made: "cluster file".
void add_result_options(CLI::App& command, ResultFlags& flags, const std::string& what);

// Returns fit_cluster(). Errors: its own, with the files that were measured.
ClusterFit fit_of(const ClusterMeasurements& measured, const std::vector<std::string>& files);

// Writes the file to -o, or to stdout, and what it rests on to stderr unless the user wants quiet; with --json both go to stdout as one object.
void give(const ClusterFit& fit, const ResultFlags& flags, const Outcome& outcome);
void give(const ImportedWorkload& imported, const ResultFlags& flags, const Outcome& outcome);

}  // namespace gradweave::cli
