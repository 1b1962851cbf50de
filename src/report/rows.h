// Rows of a comparison: schemes planned and simulated, and the best plan known of each effect.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/workload.h"

namespace gradweave {

// What all schemes are compared on: the workload of each class of workers, and a cluster of the what-if.
struct Setting {
  std::vector<Workload> classes;
  Workload slowest;  // slowest_of(classes)
  Cluster cluster;
  std::optional<double> gigabits;  // of the first link, where that is asked for
  SimulationOptions simulation;
};

// What is known of the plans of one effect.
struct Optimum {
  double iteration_ns = std::numeric_limits<double>::infinity();  // of the best plan known
  std::optional<double> bound_ns;                                 // of all of them, as far as `proof` goes
  std::string proof;                                              // what proves the bound
};

// A link that a plan asks for messages outside those that its costs were measured on.
struct Extrapolation {
  std::string link;
  MeasuredBytes measured, sent;
};
// Returns one for each such link. What is compressed, or takes a time that the workload gives, rests on no line.
std::vector<Extrapolation> extrapolations(const Plan& plan, const Workload& workload, const Cluster& cluster);

// Returns how long the whole model takes as one message of each dtype on the first link, uncompressed. O(tensors).
double model_communication_ns(const Workload& workload, const Cluster& cluster);

// Returns that time over the compute time of an iteration; nothing where nothing is computed.
std::optional<double> coverage_rate(const Workload& workload, const Cluster& cluster);

// Returns what a worker among all does of what it does alone: compute over iteration time. Nothing where nothing is
// computed.
std::optional<double> scaling_efficiency(const SimulationResult& result);

// Returns the samples that all workers together train on in a second, of `batch_size` in each worker's iteration;
// nothing where that is not known.
std::optional<double> samples_per_second(const SimulationResult& result, std::int64_t workers,
                                         std::optional<std::int64_t> batch_size);

// One method in one setting: figures, or why there are none.
struct Row {
  std::string name, scheme;
  std::int64_t workers = 1;
  std::optional<double> gigabits;
  Effect effect = Effect::kExact;
  std::optional<SimulationResult> result;
  std::string infeasible;
  std::map<std::string, std::string> options;  // of its plan, for people
  std::string compressor;                      // of what it sends; empty: none
  std::optional<SearchReport> search_report;   // of its plan
  std::optional<double> times_ddp;  // how many times faster than scheme `ddp`, from add_times_ddp()
  std::optional<Optimum> optimum;   // of its effect, from add_optima()
  std::vector<Extrapolation> extrapolated;

  double iteration_ns() const {
    return result ? result->iteration_ns() : std::numeric_limits<double>::infinity();
  }
};

// Adds the optimum that the plan's scheme has proved and noted in its options, if it holds for what was
// simulated: one class of workers, on the workload and cluster that the plan was made for.
void add_proved_optimum(const Plan& plan, const std::vector<Workload>& classes, const Cluster& cluster,
                        SimulationResult& result);

// Plans and simulates a scheme under `options`, or under those of them that it has.
Row compare_one(const SchemeOptions& options, const Setting& setting);
Row compare_one(std::string_view scheme, const Setting& setting, const CommonOptions& options);
// The method's own options first; the row is called as it is.
Row compare_one(const Method& method, const Setting& setting, const CommonOptions& options);

// Compares each row with scheme `ddp` under the same options but for a compressor: DistributedDataParallel as it is.
void add_times_ddp(std::vector<Row>& rows, const Setting& setting, const CommonOptions& options);

// Gives each row the optimum of its effect, if scheme `optimal` is among the rows. `exact` and `local`
// have a family of that scheme's; of the others nothing is known but that they compute.
void add_optima(std::vector<Row>& rows, const Setting& setting, const CommonOptions& options);

}  // namespace gradweave
