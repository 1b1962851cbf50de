// Properties of the schemes without staleness, on random workloads and clusters.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "schemes/priority.h"
#include "schemes/schedule.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

double simulated(const Plan& plan, const Workload& workload, const Cluster& cluster) {
  return simulate(plan, workload, cluster).iteration_ns();
}

Plan plan_of(std::string_view scheme, const Workload& workload, const Cluster& cluster,
             const std::map<std::string, std::string>& options = {}) {
  return std::get<Plan>(make_plan(scheme, workload, cluster, options));
}

RC_GTEST_PROP(Schemes, LieBetweenTheLowerBoundAndTheSumOfEverything, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  for (const char* scheme : {"sequential", "wfbp", "ddp", "horovod", "mg_wfbp", "asc_wfbp", "p3",
                             "bytescheduler", "us_byte", "dear"}) {
    const Plan plan = plan_of(scheme, workload, cluster);
    RC_ASSERT(validate(plan, workload, &cluster).violations.empty());
    const SimulationResult result = simulate(plan, workload, cluster);
    RC_ASSERT(result.iteration_ns() >= result.lower_bound.iteration_ns);
    RC_ASSERT(result.staleness_max == 0);
    RC_ASSERT(result.updates_per_iteration == (result.ops_per_iteration > 0 ? 1.0 : 0.0));
  }
}

RC_GTEST_PROP(Schemes, PriorityGainsAtMostForwardOverWfbpOnOneLink, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters({.max_links = 1, .fluid = false});
  const double wfbp = simulated(plan_of("wfbp", workload, cluster), workload, cluster);
  const double forward = static_cast<double>(WorkloadIndex(workload).forward_total);
  // One operation or more per tensor.
  const std::map<std::string, std::string> per_tensor = {{"fusion", "off"}};
  RC_ASSERT(wfbp - simulated(plan_of("us_byte", workload, cluster, per_tensor), workload, cluster) <=
            forward);
  for (const char* scheme : {"p3", "bytescheduler"}) {
    RC_ASSERT(wfbp - simulated(plan_of(scheme, workload, cluster), workload, cluster) <= forward);
  }
}

RC_GTEST_PROP(Schedule, EvaluatesWhatTheSimulatorSays, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  const CostModel model(workload, cluster);
  const auto partition = *rc::gen::element<std::int64_t>(1 << 18, 1 << 20, 1 << 22, 1 << 30);
  std::vector<ScheduledOp> ops = issue_by_priority(model, priority_slices(model, partition, Partition::kEven),
                                                   *rc::gen::element<std::int64_t>(1, 1 << 20, 1 << 24));
  if (*rc::gen::arbitrary<bool>()) {
    for (ScheduledOp& op : ops) op.link = *rc::gen::inRange<std::size_t>(0, cluster.links.size());
  }
  RC_ASSERT(simulated(overlapped_plan(model, ops), workload, cluster) ==
            static_cast<double>(iteration_time(model, ops)));
}

RC_GTEST_PROP(Schedule, LinkSearchIsNeverWorseThanOneLinkOrGreedy, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  const CostModel model(workload, cluster);
  std::vector<ScheduledOp> ops =
      issue_by_priority(model, priority_slices(model, 1 << 22, Partition::kEven), 1);
  const Nanoseconds by_priority = iteration_time(model, ops);
  improve_links(model, ops);
  const Nanoseconds improved = iteration_time(model, ops);
  RC_ASSERT(improved <= by_priority);
  for (std::size_t k = 0; k < cluster.links.size(); ++k) {
    for (ScheduledOp& op : ops) op.link = k;
    RC_ASSERT(improved <= iteration_time(model, ops));
  }
}

}  // namespace
}  // namespace gradweave
