// What COVAP promises, on random workloads and clusters.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "schemes/covap.h"
#include "testing/generators.h"
#include "testing/measures.h"

namespace gradweave {
namespace {

using Options = std::map<std::string, std::string>;

Options random_options() {
  Options options = {{"assignment", *rc::gen::element<std::string>("round_robin", "balanced")},
                     {"sharding", *rc::gen::element<std::string>("on", "off")},
                     {"slices", *rc::gen::element<std::string>("on", "off")}};
  if (*rc::gen::arbitrary<bool>()) options["interval"] = std::to_string(*rc::gen::inRange(1, 20));
  return options;
}

Plan covap(const Workload& workload, const Cluster& cluster, const Options& options) {
  return std::get<Plan>(make_plan("covap", workload, cluster, options));
}

// The longest iteration's communication on the first link.
Nanoseconds longest_communication(const Plan& plan, const CostModel& model) {
  return std::ranges::max(testing::communication_times(plan, model));
}

RC_GTEST_PROP(CovapProperty, PlansAreValid, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  const Plan plan = covap(workload, cluster, random_options());
  const Validation validation = validate(plan, workload, &cluster);
  for (const Violation& violation : validation.violations)
    RC_LOG() << violation.what << " at " << violation.where << "\n";
  RC_ASSERT(validation.valid());
}

RC_GTEST_PROP(CovapProperty, WithoutSlicesEveryBlockIsAWholeTensor, ()) {
  const Workload workload = *testing::workloads();
  Options options = random_options();
  options["slices"] = "off";
  const Plan plan = covap(workload, *testing::clusters(), options);
  RC_ASSERT(plan.blocks.size() == WorkloadIndex(workload).tensors.size());
  RC_ASSERT(!demands_of(plan).slices);
}

RC_GTEST_PROP(CovapProperty, EveryBlockIsSentAndAppliedOnceAPeriodAndElseDropped, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  const Plan plan = covap(workload, cluster, random_options());
  std::vector<std::size_t> sent(plan.blocks.size(), 0), dropped(plan.blocks.size(), 0),
      applied(plan.blocks.size(), 0);
  for (const Iteration& iteration : plan.period) {
    RC_ASSERT(plan.blocks.empty() || !iteration.ops.empty());
    for (const Op& op : iteration.ops) {
      for (const std::int32_t b : op.blocks) ++sent[static_cast<std::size_t>(b)];
    }
    for (const std::int32_t b : iteration.dropped) ++dropped[static_cast<std::size_t>(b)];
    for (const Apply& apply : iteration.applies) {
      for (const std::int32_t b : apply.blocks) ++applied[static_cast<std::size_t>(b)];
    }
  }
  for (std::size_t b = 0; b < plan.blocks.size(); ++b) {
    RC_ASSERT(sent[b] == 1U);
    RC_ASSERT(applied[b] == 1U);
    RC_ASSERT(dropped[b] == plan.period.size() - 1);
  }
  RC_ASSERT(plan.residual.enabled == (plan.period.size() > 1));
}

RC_GTEST_PROP(CovapProperty, BalancedIsNeverWorseThanRoundRobin, ()) {
  const Workload workload = *testing::workloads({.max_layers = 20, .max_numel = 20'000'000});
  const Cluster cluster = *testing::clusters();
  const CostModel model(workload, cluster);
  Options options = {{"interval", std::to_string(*rc::gen::inRange(1, 9))}};
  const Nanoseconds paper = longest_communication(covap(workload, cluster, options), model);
  options["assignment"] = "balanced";
  RC_ASSERT(longest_communication(covap(workload, cluster, options), model) <= paper);
}

RC_GTEST_PROP(CovapProperty, IntervalOneIsDdp, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters({.max_links = 1});
  const SimulationResult ours = simulate(covap(workload, cluster, {{"interval", "1"}}), workload, cluster);
  const SimulationResult ddp =
      simulate(std::get<Plan>(make_plan("ddp", workload, cluster)), workload, cluster);
  RC_ASSERT(ours.iteration_ns() == ddp.iteration_ns());
  RC_ASSERT(ours.bytes_per_iteration == ddp.bytes_per_iteration);
}

RC_GTEST_PROP(CovapProperty, SendsOneIntervalthOfTheBytes, ()) {
  const Workload workload = *testing::workloads();
  const Cluster cluster = *testing::clusters();
  const Plan plan = covap(workload, cluster, random_options());
  const SimulationResult result = simulate(plan, workload, cluster);
  const auto interval = static_cast<double>(plan.period.size());
  RC_ASSERT(std::abs(result.bytes_per_iteration * interval -
                     static_cast<double>(WorkloadIndex(workload).total_bytes)) < 0.5);
  RC_ASSERT(result.iteration_ns() >= result.lower_bound.iteration_ns * (1 - 1e-12));
}

RC_GTEST_PROP(CovapProperty, PartsAreAtMostTheIntervalAndCutAboveTheMedianOnly, ()) {
  const auto numels = *rc::gen::nonEmpty(
      rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(1, 1'000'000)));
  const std::int64_t interval = *rc::gen::inRange<std::int64_t>(1, 20);
  const std::vector<std::int64_t> parts = covap_parts(numels, interval);
  std::vector<std::int64_t> sorted = numels;
  std::ranges::sort(sorted);
  const double median = static_cast<double>(sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  for (std::size_t i = 0; i < numels.size(); ++i) {
    const double share = static_cast<double>(numels[i]) / median;
    RC_ASSERT(parts[i] >= 1);
    RC_ASSERT(parts[i] <= interval);
    RC_ASSERT(share >= 2 || parts[i] == 1);
    RC_ASSERT(parts[i] == interval || static_cast<double>(parts[i]) >= std::floor(share));
  }
}

}  // namespace
}  // namespace gradweave
