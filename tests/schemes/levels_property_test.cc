// What plans over two levels of links owe, on random workloads and clusters.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "testing/generators.h"
#include "testing/schemes.h"

namespace gradweave {
namespace {

const testing::WorkloadShape kFew{.max_layers = 5, .max_tensors = 2};

// Two levels: the generator has nodes of one worker too.
Cluster two_levels(testing::ClusterShape shape) {
  shape.levels = true;
  Cluster cluster = *testing::clusters(shape);
  if (cluster.workers_per_node > 1) return cluster;
  cluster.workers *= 2;
  cluster.workers_per_node = 2;
  return cluster;
}

class EverySchemeOverLevels : public ::testing::TestWithParam<std::string> {};

TEST_P(EverySchemeOverLevels, PlansAreValidRepeatableAndKeepEveryBound) {
  const bool held = rc::check("valid; the same bytes again; no faster than a bound", [] {
    const Workload workload = *testing::workloads(kFew);
    const Cluster cluster = two_levels({.max_links = 2, .halves = true});
    const PlanResult result = make_plan(GetParam(), workload, cluster);
    const Plan* plan = std::get_if<Plan>(&result);
    if (plan == nullptr) return;
    RC_ASSERT(has_levels(*plan) && plan->workers_per_node == cluster.workers_per_node);
    const Validation validation = validate(*plan, workload, &cluster);
    if (!validation.valid()) {
      const Violation& v = validation.violations.front();
      RC_FAIL(v.where + ": " + v.what + "\n" + to_json(*plan));
    }
    const std::string text = to_json(*plan);
    RC_ASSERT(parse_plan(text) == *plan);
    RC_ASSERT(to_json(std::get<Plan>(make_plan(GetParam(), workload, cluster))) == text);
    const SimulationResult simulated = simulate(*plan, workload, cluster);
    for (const Bound& bound : simulated.bounds) {
      if (simulated.iteration_ns() < bound.iteration_ns * (1 - 1e-12) - 1e-6)
        RC_FAIL(bound.name + " is " + std::to_string(bound.iteration_ns) + " ns, simulated " +
                std::to_string(simulated.iteration_ns()));
    }
  });
  EXPECT_TRUE(held);
}

TEST_P(EverySchemeOverLevels, NodesOfOneWorkerAreOneLevel) {
  const bool held = rc::check("the same plan but for the cluster's hash", [] {
    const Workload workload = *testing::workloads(kFew);
    Cluster cluster = *testing::clusters({.max_links = 2, .levels = true});
    cluster.workers /= cluster.workers_per_node;
    cluster.workers_per_node = 1;
    Cluster one = cluster;
    one.inside.reset();
    for (Link& link : one.links) link.each_worker = false;
    PlanResult levels = make_plan(GetParam(), workload, cluster);
    const PlanResult flat = make_plan(GetParam(), workload, one);
    if (Plan* plan = std::get_if<Plan>(&levels)) plan->cluster_hash = hash_of(one);
    RC_ASSERT(levels == flat);
  });
  EXPECT_TRUE(held);
}

INSTANTIATE_TEST_SUITE_P(Schemes, EverySchemeOverLevels, ::testing::ValuesIn(testing::scheme_names()),
                         [](const auto& info) { return info.param; });

// With one link on each level, steps that may overlap take no longer than the same messages whole.
RC_GTEST_PROP(Levels, StepsThatMayOverlapAreNoSlowerThanWholeMessages, ()) {
  const Workload workload = *testing::workloads({.max_layers = 5, .max_tensors = 2, .given_times = false});
  Cluster cluster = two_levels({.max_links = 1, .fluid = false});
  cluster.inside->links.resize(1);
  cluster.inside->links[0].concurrency = 1;
  const auto name =
      *rc::gen::element<std::string>("wfbp", "ddp", "p3", "us_byte", "dear", "deft", "local_sgd");
  const Plan plan = std::get<Plan>(make_plan(name, workload, cluster));
  const Plan flat = std::get<Plan>(make_plan(name, workload, flattened(cluster)));
  const SimulationResult steps = simulate(plan, workload, cluster), whole = simulate(flat, workload, cluster);
  // Each step is rounded up on its own, and so is a shard's last byte.
  const double byte_ns = 1000 * to_double(cluster.links[0].us_per_byte);
  RC_ASSERT(steps.iteration_ns() <= whole.iteration_ns() + steps.ops_per_iteration * (3 + byte_ns));
}

// Where links inside take no time, what is left is one worker for each node, which sends a shard over a link of its own,
// or the whole message over a shared one.
RC_GTEST_PROP(Levels, LinksInsideThatTakeNoTimeLeaveTheNodes, ()) {
  const Workload workload = *testing::workloads({.max_layers = 5, .max_tensors = 2, .given_times = false});
  Cluster cluster = two_levels({.max_links = 2, .fluid = false});
  for (Link& link : cluster.inside->links) link = {.name = link.name};
  const auto name = *rc::gen::element<std::string>("wfbp", "ddp", "p3", "us_byte", "local_sgd");
  Cluster nodes = cluster;
  nodes.inside.reset();
  nodes.workers /= nodes.workers_per_node;
  nodes.workers_per_node = 1;
  const Plan plan = std::get<Plan>(make_plan(name, workload, cluster));
  Plan flat = plan;  // the ops between nodes alone, as all-reduces
  std::erase_if(flat.links, [](const PlanLink& link) { return link.level == Level::kInside; });
  for (PlanLink& link : flat.links) link.level = Level::kAll;
  flat.workers_per_node = 1;
  for (auto* iterations : {&flat.prologue, &flat.period}) {
    for (Iteration& iteration : *iterations)
      std::erase_if(iteration.ops,
                    [&](const Op& op) { return find_inside_link(cluster, op.link).has_value(); });
  }
  const auto each = [](const Link& link) { return link.each_worker; };
  RC_CLASSIFY(std::ranges::any_of(cluster.links, each), "links of each worker");
  // Shards of links of its own are rounded up: such links are compared as what they carry.
  for (Link& link : nodes.links) {
    if (!std::exchange(link.each_worker, false)) continue;
    const std::int64_t shards = cluster.workers_per_node;
    link.us_per_byte = multiply_ratio(link.us_per_byte, 1, shards);
  }
  const double two = simulate(plan, workload, cluster).iteration_ns();
  const double one = simulate(flat, workload, nodes).iteration_ns();
  // Within a nanosecond, and a byte's time, for each op.
  double slack = 0;
  for (const Iteration& iteration : flat.period) slack += static_cast<double>(iteration.ops.size());
  double byte_ns = 0;
  for (const Link& link : cluster.links) byte_ns = std::max(byte_ns, 1000 * to_double(link.us_per_byte));
  slack *= 2 + byte_ns;
  RC_ASSERT(std::abs(two - one) <= slack);
}

}  // namespace
}  // namespace gradweave
