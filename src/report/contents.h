// What a page holds before it is written: rows, what-ifs, and words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradweave/report.h"
#include "report/rows.h"

namespace gradweave {

// Iteration times over three axes, each ascending; `here` is the cluster as it was given.
struct Grid {
  std::vector<std::int64_t> workers;
  std::vector<double> gigabits;
  std::vector<double> startup_us;
  struct Place {
    std::size_t worker = 0, gigabit = 0, startup = 0;
  };
  Place here;
  // Per row and point(place): the iteration time, or nothing where the row has none.
  std::vector<std::vector<std::optional<double>>> iteration_ns;

  std::size_t point(const Place& place) const {
    return (place.worker * gigabits.size() + place.gigabit) * startup_us.size() + place.startup;
  }
  std::size_t points() const { return workers.size() * gigabits.size() * startup_us.size(); }
};

struct Contents {
  Workload slowest;         // of the classes
  std::vector<Row> rows;    // schemes, then plans
  std::size_t planned = 0;  // rows of schemes
  Grid grid;
};

// Plans and simulates all. The caller owes an input with classes and a cluster.
Contents contents_of(const ReportInput& input);

// Returns what to do next, one sentence or two each.
std::vector<std::string> advice_of(const ReportInput& input, const Contents& contents);
// The same where there are only timelines, whose layers are called `layers`.
std::vector<std::string> advice_of(const std::vector<Timeline>& timelines,
                                   const std::vector<std::string>& layers);

// Returns the names of layers as timelines have them, in order.
std::vector<std::string> layers_of(const std::vector<Timeline>& timelines);

}  // namespace gradweave
