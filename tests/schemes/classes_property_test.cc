// Workers of unequal speed: one plan, decided on the slowest times.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "gradweave/error.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

using testing::clusters;
using testing::workloads;

bool in_order(const Plan& plan) {
  return std::ranges::all_of(plan.links, [](const PlanLink& link) { return link.concurrency == 1; });
}

// The workload on workers whose layers each take some percentage of the time.
Workload of_another_class(Workload workload, const std::vector<int>& percent) {
  for (std::size_t l = 0; l < workload.layers.size(); ++l) {
    Layer& layer = workload.layers[l];
    layer.forward_ns = layer.forward_ns * percent[l % percent.size()] / 100;
    layer.backward_ns = layer.backward_ns * percent[(l + 1) % percent.size()] / 100;
  }
  return workload;
}

// Where links serve one op at a time every moment is a maximum of earlier ones: slower workers never help.
RC_GTEST_PROP(Classes, APlanOfTheSlowestTimesHoldsForAllAndIsNoFasterThanAnyClassAlone, ()) {
  const Workload first = *workloads({.max_layers = 5});
  const auto percents = rc::gen::container<std::vector<int>>(3, rc::gen::inRange(20, 300));
  const std::vector<Workload> classes = {first, of_another_class(first, *percents),
                                         of_another_class(first, *percents)};
  const Workload slowest = slowest_of(classes);
  const Cluster cluster = *clusters({.max_links = 2, .fluid = false});
  for (const SchemeInfo& scheme : schemes()) {
    const PlanResult result = make_plan(scheme.name, slowest, cluster);
    const Plan* plan = std::get_if<Plan>(&result);
    if (plan == nullptr) continue;
    for (const Workload& each : classes) RC_ASSERT(validate(*plan, each, &cluster).valid());
    if (!in_order(*plan)) continue;
    const double together = simulate(*plan, classes, cluster).iteration_ns();
    for (const Workload& each : classes) RC_ASSERT(simulate(*plan, each, cluster).iteration_ns() <= together);
    RC_ASSERT(together <= simulate(*plan, slowest, cluster).iteration_ns());
  }
}

TEST(Classes, OfDifferentModelsAreRefused) {
  Workload one{.name = "w"}, other{.name = "w"};
  one.layers = {{.name = "a", .forward_ns = 1, .backward_ns = 1, .tensors = {{.name = "a.w", .numel = 8}}}};
  other.layers = one.layers;
  other.layers[0].tensors[0].numel = 9;
  EXPECT_THROW(slowest_of({one, other}), InvalidInput);
}

}  // namespace
}  // namespace gradweave
