// One page that shows what schemes and plans do with a workload on a cluster, and what was measured.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/plan.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/timeline.h"
#include "gradweave/workload.h"

namespace gradweave {

struct NamedPlan {
  std::string name;  // as the page calls it
  Plan plan;
};

// What a page is made of. Without classes and cluster it shows the timelines only.
struct ReportInput {
  std::vector<Workload> classes;  // one for each class of workers
  std::optional<Cluster> cluster;
  std::vector<Method> methods;        // planned here
  CommonOptions options;              // of all methods that don't set them
  std::vector<NamedPlan> plans;       // the caller owes validate()
  std::vector<Timeline> timelines;    // measured
  std::vector<std::string> measured;  // what else was measured, a sentence each
  // What the others are compared with, if it is among the methods: without a compressor, whatever `options` say; then the page
  // has it with that one too, by the name "ddp +fp16".
  std::string baseline = "ddp";
  // Its `timeline_iterations` are shown of each plan.
  SimulationOptions simulation = {.timeline_iterations = 4};
  // What the sliders go over: what the cluster has, and these. Empty: some below and above it.
  std::vector<std::int64_t> workers;
  std::vector<double> gigabits;  // of the first link, the others in proportion
  std::vector<double>
      startup_us;  // of the first link at the cluster's number of workers, the others in proportion
  // Is told now and then how much of the work is done; may be empty.
  std::function<void(std::size_t done, std::size_t total)> progress;
};

// Returns a self-contained HTML page: it loads nothing and runs without a network. The same input gives the same
// bytes. Errors: InvalidInput for neither a workload with its cluster nor a timeline, and as make_plan() and
// simulate(); a scheme that is infeasible is a row of the page. A point of the sliders whose
// cluster is out of range has no time. O(schemes x points of the sliders) plannings, on all processors.
std::string report_page(const ReportInput& input);

}  // namespace gradweave
