// US-Byte, Section 7.2: what start-up and bandwidth make of US-Byte, ByteScheduler (credit 1) and WFBP in the
// limit, each with one op or more per tensor on one link.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "gradweave/cost.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

using Options = std::map<std::string, std::string>;

const Options kPaper = {{"fusion", "off"}, {"block_sizes", "uniform"}};

Options with_partition(Options options, std::int64_t bytes) {
  options["partition_bytes"] = std::to_string(bytes);
  return options;
}

struct Case {
  Workload workload;
  Cluster cluster;
  WorkloadIndex index;

  SimulationResult run(std::string_view scheme, const Options& options = {}) const {
    return simulate(std::get<Plan>(make_plan(scheme, workload, cluster, options)), workload, cluster);
  }
};

// Times that are given have no start-up, so tensors have sizes.
Case any_case(testing::WorkloadShape shape = {.given_times = false}) {
  const Workload workload = *testing::workloads(shape);
  return {workload, *testing::clusters({.max_links = 1, .fluid = false}), WorkloadIndex(workload)};
}

Nanoseconds time_of(const Case& drawn, std::int64_t bytes) {
  return static_cast<Nanoseconds>(
      std::ceil(to_double(drawn.cluster.links[0].us_per_byte) * 1000 * static_cast<double>(bytes)));
}

RC_GTEST_PROP(UsByteLimits, StartUpToInfinityLeavesOneOpPerTensor, ()) {
  Case drawn = any_case({.max_numel = 100'000, .given_times = false});
  drawn.cluster.links[0].startup_ns = 10'000'000'000'000;
  const auto tensors = static_cast<double>(drawn.index.tensors.size());
  const SimulationResult us_byte = drawn.run("us_byte", kPaper);
  RC_ASSERT(us_byte.ops_per_iteration == tensors);
  if (tensors == 0) return;
  RC_ASSERT(std::abs(us_byte.iteration_ns() / drawn.run("wfbp").iteration_ns() - 1) < 1e-3);
  // ByteScheduler pays for every part.
  const std::int64_t partition = *rc::gen::inRange<std::int64_t>(100'000, 1'000'000);
  const SimulationResult parts =
      drawn.run("bytescheduler", with_partition({{"credit_bytes", "1"}}, partition));
  RC_ASSERT(std::abs(parts.iteration_ns() / us_byte.iteration_ns() / (parts.ops_per_iteration / tensors) -
                     1) < 1e-3);
}

// Where the start-up is longer than all else together, the number of messages is the number of start-ups that
// an iteration lasts: a fused plan beats an unfused one.
RC_GTEST_PROP(Fusion, FewerMessagesAreFasterWhereLatencyDominates, ()) {
  Case drawn = any_case({.max_numel = 10'000, .given_times = false});
  constexpr Nanoseconds kStartup = 1'000'000'000'000;
  drawn.cluster.links[0].startup_ns = kStartup;
  for (const std::string_view scheme :
       {"sequential", "wfbp", "ddp", "horovod", "mg_wfbp", "p3", "bytescheduler", "us_byte"}) {
    const SimulationResult result = drawn.run(scheme);
    const double rest = result.iteration_ns() - result.ops_per_iteration * static_cast<double>(kStartup);
    RC_ASSERT(rest >= 0 && rest < static_cast<double>(kStartup));
  }
  RC_ASSERT(drawn.run("us_byte").ops_per_iteration <= drawn.run("us_byte", kPaper).ops_per_iteration);
  RC_ASSERT(drawn.run("mg_wfbp").ops_per_iteration <= drawn.run("wfbp").ops_per_iteration);
  RC_ASSERT(drawn.run("dear").iteration_ns() <=
            drawn.run("dear", {{"layers_per_group", "1"}}).iteration_ns());
}

// Both send the most urgent block whenever the link is free. Without start-up that ends at most one block
// later than the best preemptive order (Jackson), which no scheme can beat.
RC_GTEST_PROP(UsByteLimits, WithoutStartUpItIsByteScheduler, ()) {
  Case drawn = any_case();
  drawn.cluster.links[0].startup_ns = 0;
  const std::int64_t partition =
      std::max(drawn.index.total_bytes / *rc::gen::inRange<std::int64_t>(1, 200), std::int64_t{8});
  const SimulationResult us_byte = drawn.run("us_byte", with_partition(kPaper, partition));
  const SimulationResult parts =
      drawn.run("bytescheduler", with_partition({{"credit_bytes", "1"}}, partition));
  // Every op is rounded up to nanoseconds.
  const double block =
      static_cast<double>(time_of(drawn, partition)) + us_byte.ops_per_iteration + parts.ops_per_iteration;
  RC_ASSERT(std::abs(us_byte.iteration_ns() - parts.iteration_ns()) <= block);
  const double gain = drawn.run("wfbp").iteration_ns() - us_byte.iteration_ns();
  RC_ASSERT(gain >= -block);
  RC_ASSERT(gain <= static_cast<double>(drawn.index.forward_total) + block);
}

RC_GTEST_PROP(UsByteLimits, BandwidthToInfinityHidesEverything, ()) {
  Case drawn = any_case();
  drawn.cluster.links[0].startup_ns = 0;
  drawn.cluster.links[0].us_per_byte = {0, 0};
  for (const std::string_view scheme : {"us_byte", "bytescheduler", "wfbp"}) {
    RC_ASSERT(drawn.run(scheme).iteration_ns() == static_cast<double>(drawn.index.compute_total));
  }
}

RC_GTEST_PROP(UsByteLimits, BandwidthToZeroMakesAllEqual, ()) {
  Case drawn = any_case();
  if (drawn.index.total_bytes == 0) return;
  const std::int64_t partition = std::max(drawn.index.total_bytes / 200, std::int64_t{8});
  // 1000 times the computation and the start-ups of all blocks.
  const Nanoseconds rest = drawn.index.compute_total + drawn.cluster.links[0].startup_ns * 256;
  drawn.cluster.links[0].us_per_byte = {rest / drawn.index.total_bytes + 1, 0};
  const auto bytes_ns = static_cast<double>(time_of(drawn, drawn.index.total_bytes));
  const double us_byte = drawn.run("us_byte", with_partition(kPaper, partition)).iteration_ns();
  const double parts =
      drawn.run("bytescheduler", with_partition({{"credit_bytes", "1"}}, partition)).iteration_ns();
  const double wfbp = drawn.run("wfbp").iteration_ns();
  for (const double time : {us_byte, parts, wfbp}) RC_ASSERT(std::abs(time / bytes_ns - 1) < 0.01);
}

// The same bound for DeAR's halves, where a group is a tensor.
RC_GTEST_PROP(Dear, GainsAtMostForwardOverWfbpWithoutFusion, ()) {
  const Case drawn = any_case({.max_tensors = 1, .given_times = false});
  const double gain =
      drawn.run("wfbp").iteration_ns() - drawn.run("dear", {{"layers_per_group", "1"}}).iteration_ns();
  RC_ASSERT(gain <= static_cast<double>(drawn.index.forward_total));
}

}  // namespace
}  // namespace gradweave
