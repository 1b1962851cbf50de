// The core keeps no state between calls: threads that plan and simulate at once get what one alone gets. The
// thread sanitizer runs this.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/timeline.h"
#include "gradweave/validate.h"

namespace gradweave {
namespace {

Workload workload() {
  Workload workload{.name = "w"};
  for (int l = 0; l < 6; ++l) {
    const std::string name = "layer" + std::to_string(l);
    workload.layers.push_back({.name = name,
                               .forward_ns = 100'000,
                               .backward_ns = 200'000,
                               .tensors = {{.name = name + ".weight", .numel = 200'000 + 10'000 * l},
                                           {.name = name + ".bias", .numel = 100}}});
  }
  return workload;
}

Cluster cluster() {
  Cluster cluster{.workers = 4};
  cluster.links.push_back({.name = "fast", .startup_ns = 10'000, .us_per_byte = {1, 3000}, .concurrency = 2});
  cluster.links.push_back({.name = "slow", .startup_ns = 20'000, .us_per_byte = {1, 1000}});
  return cluster;
}

// Everything that one caller may do with one scheme, as text.
std::string outcome(std::string_view scheme) {
  const std::string workload_text = to_json(workload()), cluster_text = to_json(cluster());
  const Workload workload = parse_workload(workload_text);
  const Cluster cluster = parse_cluster(cluster_text);
  const PlanResult result = make_plan(scheme, workload, cluster);
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&result)) return infeasible->reason;
  const Plan& plan = std::get<Plan>(result);
  const bool valid = validate(plan, workload, &cluster).valid();
  const SimulationResult simulated = simulate(plan, workload, cluster);
  return to_json(plan) + std::to_string(simulated.iteration_ns()) + (valid ? " valid" : " not valid");
}

std::vector<std::string> every_outcome() {
  std::vector<std::string> outcomes;
  for (const SchemeInfo& scheme : schemes()) outcomes.push_back(outcome(scheme.name));
  return outcomes;
}

TEST(Threads, PlanAndSimulateAtOnceAsAlone) {
  std::vector<std::vector<std::string>> seen(2);
  std::vector<std::thread> threads;
  for (std::vector<std::string>& mine : seen) threads.emplace_back([&mine] { mine = every_outcome(); });
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> alone = every_outcome();
  for (const std::vector<std::string>& mine : seen) EXPECT_EQ(mine, alone);
}

}  // namespace
}  // namespace gradweave
