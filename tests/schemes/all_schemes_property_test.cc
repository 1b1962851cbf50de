// What every scheme owes, on random workloads and clusters, with its default options.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "testing/generators.h"
#include "testing/schemes.h"

namespace gradweave {
namespace {

std::string text_of(const Validation& validation) {
  std::string text;
  for (const Violation& v : validation.violations) {
    text += "rule " + std::to_string(v.rule) + ": " + v.where + ": " + v.what + "; " + v.remedy + "\n";
  }
  return text;
}

class EveryScheme : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryScheme, PlansAreValidAndRepeatable) {
  const bool held = rc::check("plan or a reason; valid; the same bytes again", [] {
    const Workload workload = *testing::workloads();
    const Cluster cluster = *testing::clusters({.halves = true});
    const PlanResult result = make_plan(GetParam(), workload, cluster);
    if (const Infeasible* infeasible = std::get_if<Infeasible>(&result)) {
      RC_ASSERT(!infeasible->reason.empty());
      return;
    }
    const Plan& plan = std::get<Plan>(result);
    const Validation validation = validate(plan, workload, &cluster);
    if (!validation.valid()) RC_FAIL(text_of(validation) + to_json(plan));
    const std::string text = to_json(plan);
    RC_ASSERT(parse_plan(text) == plan);
    RC_ASSERT(to_json(std::get<Plan>(make_plan(GetParam(), workload, cluster))) == text);
  });
  EXPECT_TRUE(held);
}

TEST_P(EveryScheme, SimulatedTimeKeepsEveryBound) {
  const bool held = rc::check("iteration >= each lower bound", [] {
    const Workload workload = *testing::workloads();
    const Cluster cluster = *testing::clusters({.halves = true});
    const PlanResult result = make_plan(GetParam(), workload, cluster);
    const Plan* plan = std::get_if<Plan>(&result);
    if (plan == nullptr) return;
    const SimulationResult simulated = simulate(*plan, workload, cluster);
    RC_ASSERT(simulated.exposed_ns >= 0);
    RC_ASSERT(simulated.updates_per_iteration <= 1);
    for (const Bound& bound : simulated.bounds) {
      // A millionth of a nanosecond for the sums of doubles.
      if (simulated.iteration_ns() < bound.iteration_ns * (1 - 1e-12) - 1e-6) {
        RC_FAIL(bound.name + " is " + std::to_string(bound.iteration_ns) + " ns, simulated " +
                std::to_string(simulated.iteration_ns()));
      }
    }
  });
  EXPECT_TRUE(held);
}

INSTANTIATE_TEST_SUITE_P(Schemes, EveryScheme, ::testing::ValuesIn(testing::scheme_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace gradweave
