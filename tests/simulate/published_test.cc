// The published figures that concern the simulator.
#include <gtest/gtest.h>

#include <variant>

#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "simulate/table2.h"

namespace gradweave {
namespace {

SimulationResult simulate_scheme(const char* scheme) {
  const Workload workload = table2_workload();
  const Cluster cluster = table2_cluster();
  return simulate(std::get<Plan>(make_plan(scheme, workload, cluster)), workload, cluster);
}

double bound(const SimulationResult& result, const std::string& name) {
  for (const Bound& bound : result.bounds) {
    if (bound.name == name) return bound.iteration_ns;
  }
  return -1;
}

TEST(TableTwo, WfbpTakesThePublishedTime) {
  const SimulationResult result = simulate_scheme("wfbp");
  EXPECT_EQ(result.cycle_ns, 285'053'000);
  EXPECT_EQ(result.cycle_iterations, 1);
  EXPECT_EQ(result.compute_ns, 130'285'000);
  EXPECT_EQ(result.method, "repetition");
  EXPECT_DOUBLE_EQ(result.exposed_ns, 154'768'000);
  EXPECT_DOUBLE_EQ(result.ops_per_iteration, 6);
}

TEST(TableTwo, BoundsNameTheLink) {
  const SimulationResult result = simulate_scheme("wfbp");
  EXPECT_DOUBLE_EQ(bound(result, "compute"), 130'285'000);
  EXPECT_DOUBLE_EQ(bound(result, "link eth0"), 247'725'000);
  EXPECT_EQ(bound(result, "critical path"), -1);  // nothing is applied in the next forward
  EXPECT_EQ(result.lower_bound.name, "link eth0");
}

TEST(TableTwo, SequentialTakesComputePlusCommunication) {
  EXPECT_EQ(simulate_scheme("sequential").cycle_ns, 130'285'000 + 247'725'000);
}

// Each bucket applied at its own forward_start of the next iteration, sent in order of the forward: the least
// that forward overlap on one link can take.
Plan forward_overlap_plan() {
  Plan plan{.links = {{"eth0", 1}}, .period = {{}}};
  Iteration& iteration = plan.period[0];
  for (std::int32_t l = 0; l < 6; ++l) {
    plan.blocks.push_back({"bucket" + std::to_string(l + 1) + ".weight", 0,
                           table2_workload().layers[static_cast<std::size_t>(l)].tensors[0].numel});
    iteration.applies.push_back({.at = {PointKind::kForwardStart, l}, .blocks = {l}, .merges = {-1}});
  }
  for (std::int32_t l = 5; l >= 0; --l) {
    iteration.ops.push_back(
        {.link = "eth0", .blocks = {l}, .merges = {0}, .release = {{PointKind::kBackwardEnd, l}}});
  }
  return plan;
}

TEST(TableTwo, CriticalPathOfForwardOverlap) {
  const SimulationResult result = simulate(forward_overlap_plan(), table2_workload(), table2_cluster());
  EXPECT_DOUBLE_EQ(bound(result, "critical path"), 247'990'000);
  EXPECT_EQ(result.lower_bound.name, "critical path");
  EXPECT_GE(result.iteration_ns(), 247'990'000);
  EXPECT_LE(result.iteration_ns(), 285'053'000);
  EXPECT_EQ(result.staleness_max, 0);
}

}  // namespace
}  // namespace gradweave
