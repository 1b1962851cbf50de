// RapidCheck generators of workloads and clusters for property tests: small, skewed, with the odd cases
// often.
#pragma once

#include <rapidcheck.h>

#include "gradweave/cluster.h"
#include "gradweave/json.h"
#include "gradweave/workload.h"

namespace gradweave::testing {

struct WorkloadShape {
  int max_layers = 8;
  int max_tensors = 3;                 // per layer
  std::int64_t max_numel = 2'000'000;  // sizes are skewed: mostly small, some near this
  bool given_times = true;             // some layers, or all, may have `communication_us`
  bool mixed_dtypes = true;
};

struct ClusterShape {
  int max_links = 4;
  std::int64_t max_workers = 10'000;
  bool fluid = true;    // links of concurrency 0 or above 1
  bool halves = false;  // links whose reduce-scatter and all-gather have costs of their own
  bool levels = false;  // links inside nodes too, of 1, 2, 4 or 8 workers
};

// Returns a generator of workloads that pass check(): one layer or several, zero-time layers, layers without
// tensors (or a model without any), sizes of 1 to max_numel, times of 0 to 20 ms, given communication times.
rc::Gen<Workload> workloads(WorkloadShape shape = {});

// Returns a generator of clusters that pass check(): 1, 2 or up to max_workers workers; links with tiny,
// usual and huge start-ups and rates; relative times of 0.5 to 3.
rc::Gen<Cluster> clusters(ClusterShape shape = {});

// Returns a generator of decimals that are exact: up to 9 digits, scale up to 12.
rc::Gen<Decimal> decimals(std::int64_t max_mantissa);

}  // namespace gradweave::testing

namespace gradweave {

// A failing case is printed as the file that reproduces it. RapidCheck finds these by argument-dependent
// lookup.
inline void showValue(const Workload& workload, std::ostream& out) { out << to_json(workload); }
inline void showValue(const Cluster& cluster, std::ostream& out) { out << to_json(cluster); }

}  // namespace gradweave
