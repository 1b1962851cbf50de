// Any plan for a small workload is judged without a crash, and a valid one can be simulated.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"

namespace {

using namespace gradweave;

const Workload kWorkload{
    .name = "three",
    .layers = {{.name = "la", .forward_ns = 1000, .backward_ns = 2000, .tensors = {{"a", 8}}},
               {.name = "lb", .forward_ns = 0, .backward_ns = 2000, .tensors = {{"b", 6}}},
               {.name = "lc", .forward_ns = 1000, .backward_ns = 0, .tensors = {{"c", 4}}}}};
const Cluster kCluster{
    .workers = 2,
    .links = {{.name = "net", .startup_ns = 500, .us_per_byte = {1, 2}},
              {.name = "other", .startup_ns = 100, .us_per_byte = {2, 2}, .concurrency = 0}}};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Plan plan;
  try {
    plan = parse_plan(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const InvalidInput&) {
    return 0;
  }
  const Validation validation = validate(plan, kWorkload, &kCluster);
  if (!validation.valid() || plan.period.size() > 50) return 0;
  for (const PlanLink& link : plan.links) {
    if (link.concurrency > 64) return 0;
  }
  const SimulationResult result =
      simulate(plan, kWorkload, kCluster, {.max_periods = 50, .timeline_iterations = 2});
  if (result.cycle_iterations < 1 || result.iteration_ns() < static_cast<double>(result.compute_ns) - 1e-3)
    std::abort();
  return 0;
}
