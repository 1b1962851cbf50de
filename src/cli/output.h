// Results as JSON objects and as tables for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/simulate.h"
#include "gradweave/workload.h"

namespace gradweave::cli {

using Json = nlohmann::ordered_json;

// Returns `numerator_ns / denominator` in microseconds: exact where the decimal is finite, else to 6 places.
double microseconds_of(Nanoseconds numerator_ns, std::int64_t denominator = 1);
// Returns a derived time in microseconds, to 6 places.
double microseconds_rounded(double nanoseconds);

// Returns the object that `simulate --json` prints.
Json to_object(const SimulationResult& result);
// Returns what identifies the input of a comparison.
Json summary_of(const Workload& workload);
Json summary_of(const Cluster& cluster);

// Prints with an indent of 1, and a newline.
void print(const Json& value);

// A table with aligned columns: the first is left-aligned, the others right-aligned unless said otherwise.
struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::vector<bool> left;  // per column

  std::string text() const;
};

// Returns a time with a unit that suits its size, e.g. "247.990 ms".
std::string human_time(double nanoseconds);
// Returns a size, e.g. "13.2 MB".
std::string human_bytes(double bytes);

}  // namespace gradweave::cli
