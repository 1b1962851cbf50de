// Results as tables for people, and inputs as JSON objects.
#pragma once

#include <string>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/workload.h"
#include "io/result_json.h"

namespace gradweave::cli {

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
