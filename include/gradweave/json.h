// The file forms: workload, cluster, plan, timeline and measurements as JSON. schema/ has them as JSON schemas;
// what can be written round-trips exactly.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "gradweave/cluster.h"
#include "gradweave/fit.h"
#include "gradweave/plan.h"
#include "gradweave/preserve.h"
#include "gradweave/timeline.h"
#include "gradweave/workload.h"

namespace gradweave {

// Each returns what `text` says. Errors: InvalidInput naming the JSON key, the fault and the remedy; any
// bytes are safe input. parse_plan() takes any plan whose form is right: what it means is validate()'s
// business.
Workload parse_workload(std::string_view text);
Cluster parse_cluster(std::string_view text);
Plan parse_plan(std::string_view text);
Timeline parse_timeline(std::string_view text);
Measurements parse_measurements(std::string_view text);
ClusterMeasurements parse_link_measurements(std::string_view text);

// Each returns the canonical JSON text, ending in a newline: same value, same bytes.
std::string to_json(const Workload& workload);
std::string to_json(const Cluster& cluster);
std::string to_json(const Plan& plan);
std::string to_json(const Timeline& timeline);

// Returns a hash (32 hex digits) of the canonical JSON of the plan. Ranks compare it.
std::string hash_of(const Plan& plan);

// The texts above on files, "-" being standard input; errors name the file too. A file that can't be read is
// InvalidInput.
Workload read_workload(const std::filesystem::path& path);
Cluster read_cluster(const std::filesystem::path& path);
Plan read_plan(const std::filesystem::path& path);
Timeline read_timeline(const std::filesystem::path& path);
Measurements read_measurements(const std::filesystem::path& path);
ClusterMeasurements read_link_measurements(const std::filesystem::path& path);

// Writes `text` to `path`, or leaves what was there: written aside under a name that is nobody else's, synced,
// renamed. Symbolic links stay; what they lead to is written. "-" is standard output.
// Errors: InvalidInput if the path can't be written; RuntimeFailure if the disk fails.
void write_file(const std::filesystem::path& path, std::string_view text);

// Returns `nanoseconds` as a decimal number of microseconds, exact, e.g. "12.345".
std::string microseconds(Nanoseconds nanoseconds);

}  // namespace gradweave
