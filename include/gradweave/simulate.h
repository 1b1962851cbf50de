// Predicts what a plan does: iteration time, exposed communication, use of links. docs/plan.md has the
// semantics.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/plan.h"
#include "gradweave/timeline.h"
#include "gradweave/workload.h"

namespace gradweave {

struct SimulationOptions {
  bool plan_facts = true;        // find extra_bytes, which costs as much as a validation
  Nanoseconds optimizer_ns = 0;  // time of one whole optimizer step, spread over applies by bytes
  // By how much an optimizer step in the forward or the backward, a call of its own for few tensors, takes longer than its share.
  Nanoseconds apply_ns = 0;
  Decimal contention = {1, 0};  // compute takes this many times longer while a link is busy; >= 1
  Nanoseconds handover_ns = 0;  // from when an op is ready until an idle link starts it
  Nanoseconds launch_ns = 0;    // of compute that goes on as an op starts, which the op takes
  // The size of each link's token bucket, as the time in which the link sends as much: it fills while the link sends nothing, because
  // it is idle or, with concurrency 1, because an op starts up. It makes the next ops that much shorter.
  Nanoseconds burst_ns = 0;
  std::int64_t max_periods = 10'000;  // without a repeated state by then, see `steady`
  // How many iterations go into `timeline`: of the steady state or, where the plan has a prologue, the
  // prologue and as many after it. 0: none.
  std::int64_t timeline_iterations = 0;
};

// A lower bound on the mean iteration time.
struct Bound {
  std::string
      name;  // "compute", "link NAME", "all links", of two levels "all links inside" and "... between", "critical path", "optimum"
  double iteration_ns = 0;
};

struct LinkUse {
  std::string link;
  double busy_ns = 0;  // per iteration: time in which at least one op is active
  double use = 0;      // busy_ns / iteration time
};

struct SimulationResult {
  std::string name;    // Plan::scheme
  bool steady = true;  // false: cycle_ns is a mean of a run that never settled
  std::string method;  // "repetition", "maximum cycle ratio" (exact too), "mean of the last 1000 periods"
  Nanoseconds cycle_ns = 0;           // exact
  std::int64_t cycle_iterations = 1;  // iteration time = cycle_ns / cycle_iterations
  Nanoseconds compute_ns = 0;         // of one iteration of the slowest class of workers, optimizer included
  double exposed_ns = 0;              // per iteration: iteration time - compute
  std::vector<ExposedLayer> exposed_layers;
  std::vector<LinkUse> links;
  double updates_per_iteration = 0;  // iterations with an optimizer step / iterations
  double staleness_mean = 0;  // forwards begun after the gradient was computed and before it is applied
  std::int64_t staleness_max = 0;
  double ops_per_iteration = 0;
  // Uncompressed bytes handed to collectives; a reduce-scatter with its all-gather counts once, and of two levels the
  // op between nodes alone.
  double bytes_per_iteration = 0;
  std::int64_t extra_bytes = 0;  // PlanFacts::extra_bytes
  std::int64_t period = 1;       // Plan::period.size()
  std::vector<Bound> bounds;
  Bound lower_bound;  // the largest of them
  Timeline timeline;

  double iteration_ns() const {
    return static_cast<double>(cycle_ns) / static_cast<double>(cycle_iterations);
  }
};

// Adds a bound that is known from elsewhere, such as a scheme's proven optimum, and keeps lower_bound the
// largest.
void add_bound(SimulationResult& result, const Bound& bound);

// Returns the steady state of `plan`. `classes`: one workload per class of workers (same layers and tensors,
// own times); an op starts when every class has released it. Identical ranks are simulated once. On two levels an op
// of a plan without levels takes the time of its steps on both, one after the other, on its link. The caller
// owes a valid plan (validate()); of an invalid one, results that never come are not waited for. Errors:
// InvalidInput if classes or links don't fit the plan, if ops and waits wait for each other, or if times or
// references are beyond exact simulation. O(ops) per iteration until the state repeats.
SimulationResult simulate(const Plan& plan, std::span<const Workload> classes, const Cluster& cluster,
                          const SimulationOptions& options = {});
SimulationResult simulate(const Plan& plan, const Workload& workload, const Cluster& cluster,
                          const SimulationOptions& options = {});

}  // namespace gradweave
