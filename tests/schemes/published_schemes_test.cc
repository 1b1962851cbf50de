// Published figures that these schemes must reproduce: DeFT's Tables I and II on one link.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "simulate/table2.h"

namespace gradweave {
namespace {

double table2_us(std::string_view scheme, const std::map<std::string, std::string>& options = {}) {
  const Plan plan = std::get<Plan>(make_plan(scheme, table2_workload(), table2_cluster(), options));
  return simulate(plan, table2_workload(), table2_cluster()).iteration_ns() / 1000;
}

// DeFT's Table I: communication over computation. The paper prints 1.67 for ResNet-101; 242 / (59 + 118)
// is 1.367.
TEST(Table1, CoverageRates) {
  const std::string examples = std::string(GRADWEAVE_SOURCE_DIR) + "/examples/";
  const Cluster cluster = read_cluster(examples + "clusters/deft-table2-one-link.json");
  const std::map<std::string, double> rates = {{"resnet101", 1.367}, {"vgg19", 1.985}, {"gpt2", 0.993}};
  for (const auto& [network, rate] : rates) {
    const Workload workload = read_workload(examples + "workloads/deft-table1-" + network + ".json");
    const Plan plan = std::get<Plan>(make_plan("sequential", workload, cluster));
    const SimulationResult result = simulate(plan, workload, cluster);
    EXPECT_NEAR(result.exposed_ns / static_cast<double>(result.compute_ns), rate, 0.0005) << network;
  }
}

TEST(Table2, WfbpTakes285053) { EXPECT_EQ(table2_us("wfbp"), 285053); }

TEST(Table2, SequentialTakesTheSum) { EXPECT_EQ(table2_us("sequential"), 130285 + 247725); }

TEST(Table2, MergingGainsNothingWithoutStartUp) {
  EXPECT_EQ(table2_us("mg_wfbp", {{"solver", "exact"}}), 285053);
}

// The bound is the critical path of bucket 6: ready at 162, then all 247725 of communication, then its
// forward, 103.
TEST(Table2, ForwardOverlapReachesTheBoundWithTunedParameters) {
  for (const char* scheme : {"p3", "bytescheduler", "us_byte", "dear", "optimal"})
    EXPECT_EQ(table2_us(scheme), 247990) << scheme;
}

TEST(Table2, WholeTensorsByPriorityStayInTheRange) {
  const std::map<std::string, std::string> whole = {{"partition_bytes", "1000000000"}, {"credit_bytes", "1"}};
  for (const char* scheme : {"p3", "bytescheduler"}) {
    EXPECT_GE(table2_us(scheme, whole), 247990) << scheme;
    EXPECT_LE(table2_us(scheme, whole), 285053) << scheme;
  }
}

}  // namespace
}  // namespace gradweave
