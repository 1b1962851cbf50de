// What must hold for the steady state of any plan.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <optional>

#include "gradweave/error.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/validate.h"
#include "simulate/cycle_ratio.h"
#include "simulate/machine.h"
#include "simulate/random_plan.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

using testing::PlanShape;
__extension__ using Wide = __int128;

const testing::WorkloadShape kSmall{.max_layers = 6, .max_tensors = 2, .max_numel = 1'000'000};

// Nothing if the plan deadlocks.
std::optional<SimulationResult> simulate_unless_stuck(const Plan& plan, const Workload& workload,
                                                      const Cluster& cluster,
                                                      const SimulationOptions& options = {}) {
  try {
    return simulate(plan, workload, cluster, options);
  } catch (const InvalidInput&) {
    return std::nullopt;
  }
}

bool same_rate(Nanoseconds time_a, std::int64_t iterations_a, Nanoseconds time_b, std::int64_t iterations_b) {
  return static_cast<Wide>(time_a) * iterations_b == static_cast<Wide>(time_b) * iterations_a;
}

void assert_same_rate(const SimulationResult& a, const SimulationResult& b) {
  RC_ASSERT(same_rate(a.cycle_ns, a.cycle_iterations, b.cycle_ns, b.cycle_iterations));
}

RC_GTEST_PROP(SteadyState, IsNeverBelowABound, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Cluster cluster = *testing::clusters({.max_links = 3});
  const Plan plan =
      testing::random_plan(workload, cluster, {.fluid = *rc::gen::arbitrary<bool>(), .any_order = false});
  SimulationOptions options{.max_periods = 3000};
  if (*rc::gen::inRange(0, 3) == 0) options.contention = {15, 1};
  if (*rc::gen::inRange(0, 3) == 0) options.handover_ns = 234'567;
  if (*rc::gen::inRange(0, 3) == 0) options.launch_ns = 12'345;
  if (*rc::gen::inRange(0, 3) == 0) options.burst_ns = 1'234'567;
  if (*rc::gen::inRange(0, 2) == 0) options.optimizer_ns = 123'457;
  if (*rc::gen::inRange(0, 3) == 0) options.apply_ns = 23'456;
  const auto result = simulate_unless_stuck(plan, workload, cluster, options);
  if (!result) RC_DISCARD("deadlock");
  RC_TAG(result->method, result->lower_bound.name.substr(0, 4), options.contention.mantissa);
  for (const Bound& bound : result->bounds) {
    RC_LOG() << bound.name << " " << bound.iteration_ns << " iteration " << result->iteration_ns() << "\n";
    // A mean over a stretch that does not repeat may end in the middle of what a bound counts whole.
    RC_ASSERT(bound.iteration_ns <= result->iteration_ns() * (result->steady ? 1 + 1e-12 : 1.02));
    RC_ASSERT(bound.iteration_ns <= result->lower_bound.iteration_ns);
  }
  RC_ASSERT(result->exposed_ns >= 0);
}

// The validator's proof that nothing waits in a circle, and the simulator's experience.
RC_GTEST_PROP(SteadyState, ExistsForEveryValidPlan, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Cluster cluster = *testing::clusters({.max_links = 3});
  const Plan plan =
      testing::random_plan(workload, cluster, {.fluid = *rc::gen::arbitrary<bool>(), .prologue = false});
  const bool valid = validate(plan, workload, &cluster).valid();
  RC_CLASSIFY(valid);
  const auto result = simulate_unless_stuck(plan, workload, cluster);
  RC_ASSERT(result.has_value() || !valid);
}

RC_GTEST_PROP(SteadyState, EqualsTheMaximumCycleRatio, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Cluster cluster = *testing::clusters({.max_links = 3, .fluid = false});
  const Plan plan = testing::random_plan(workload, cluster, {.any_order = false});
  const auto result = simulate_unless_stuck(plan, workload, cluster);
  if (!result) RC_DISCARD("deadlock");
  RC_PRE(result->method == "repetition");
  const CostModel model(workload, cluster);
  const CycleRatio ratio = maximum_cycle_ratio(program_of(
      CompiledPlan(resolve(plan, model.index(), &cluster)), std::span(&workload, 1), model, {}, false));
  RC_ASSERT(same_rate(result->cycle_ns, result->cycle_iterations, ratio.time, ratio.iterations));
}

RC_GTEST_PROP(SteadyState, IsTheSameInBothMachines, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Cluster cluster = *testing::clusters({.max_links = 3, .fluid = false});
  const Plan plan = testing::random_plan(workload, cluster);
  const CostModel model(workload, cluster);
  const Program program = program_of(CompiledPlan(resolve(plan, model.index(), &cluster)),
                                     std::span(&workload, 1), model, {}, false);
  const auto serial = serial_machine(program);
  const auto shared = shared_machine(program, {1, 0});
  bool stuck = false;
  for (std::int64_t n = 1; n <= 40; ++n) {
    try {
      serial->run_to(n, nullptr);
    } catch (const InvalidInput&) {
      stuck = true;
    }
    if (stuck) {
      RC_ASSERT_THROWS_AS(shared->run_to(n, nullptr), InvalidInput);
      return;
    }
    shared->run_to(n, nullptr);
    RC_ASSERT(serial->time() == shared->time());
  }
}

RC_GTEST_PROP(SteadyState, DoesNotDependOnWhereThePeriodBegins, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Cluster cluster = *testing::clusters({.max_links = 3});
  const Plan plan = testing::random_plan(workload, cluster, {.prologue = false, .any_order = false});
  Plan rotated = plan;
  std::ranges::rotate(rotated.period,
                      rotated.period.begin() + *rc::gen::inRange<std::ptrdiff_t>(0, std::ssize(plan.period)));
  const auto a = simulate_unless_stuck(plan, workload, cluster);
  const auto b = simulate_unless_stuck(rotated, workload, cluster);
  if (!a || !b) RC_DISCARD("deadlock");
  RC_PRE(a->steady && b->steady);
  assert_same_rate(*a, *b);
}

// Listed one iteration later with everything one further back, in the same order on every link.
RC_GTEST_PROP(SteadyState, DoesNotDependOnWhichIterationListsAnOp, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Cluster cluster = *testing::clusters({.max_links = 3});
  const Plan plan = testing::random_plan(workload, cluster, {.prologue = false, .any_order = false});
  Plan later = plan;
  for (std::size_t i = 0; i < plan.period.size(); ++i) {
    std::vector<Op>& ops = later.period[(i + 1) % plan.period.size()].ops;
    ops = plan.period[i].ops;
    for (Op& op : ops) {
      for (std::int32_t& merge : op.merges) --merge;
      --op.release.point.iteration;
    }
  }
  const auto a = simulate_unless_stuck(plan, workload, cluster);
  const auto b = simulate_unless_stuck(later, workload, cluster);
  if (!a || !b) RC_DISCARD("deadlock");
  RC_PRE(a->steady && b->steady);
  assert_same_rate(*a, *b);
}

// Where compute is cut into layers does not matter, as long as gradients are ready at the same times.
RC_GTEST_PROP(SteadyState, DoesNotDependOnCutsOfCompute, ()) {
  Workload workload = *testing::workloads(kSmall);
  const Cluster cluster = *testing::clusters({.max_links = 3});
  const Plan plan = testing::random_plan(workload, cluster, {.any_order = false});
  const auto a = simulate_unless_stuck(plan, workload, cluster);
  if (!a) RC_DISCARD("deadlock");
  Layer& last = workload.layers.back();
  Layer added{.name = "added", .forward_ns = last.forward_ns / 3, .backward_ns = last.backward_ns / 3};
  last.forward_ns -= added.forward_ns;
  last.backward_ns -= added.backward_ns;
  workload.layers.push_back(added);
  const auto b = simulate_unless_stuck(plan, workload, cluster);
  RC_ASSERT(b.has_value());
  RC_PRE(a->steady && b->steady);
  assert_same_rate(*a, *b);
}

RC_GTEST_PROP(Cost, OfPartsIsNeverBelowTheWhole, ()) {
  const std::int64_t numel = *rc::gen::inRange<std::int64_t>(2, 1'000'000);
  Workload workload{.layers = {{.name = "layer", .tensors = {{"before", 7}, {"tensor", numel}}}}};
  if (*rc::gen::inRange(0, 2) == 0) workload.layers[0].communication_ns = *rc::gen::inRange(0, 20'000'000);
  const Cluster cluster = *testing::clusters();
  const CostModel model(workload, cluster);
  const std::size_t tensor = 1;
  const std::int64_t cut = *rc::gen::inRange<std::int64_t>(1, numel);
  const Slice whole{tensor, 0, numel}, first{tensor, 0, cut}, second{tensor, cut, numel};
  for (std::size_t k = 0; k < model.link_count(); ++k) {
    RC_ASSERT(model.all_reduce(k, first) + model.all_reduce(k, second) >= model.all_reduce(k, whole));
    const OpCost scatter = model.cost(k, Collective::kReduceScatter, std::span(&whole, 1));
    const OpCost gather = model.cost(k, Collective::kAllGather, std::span(&whole, 1));
    RC_ASSERT(scatter.total() + gather.total() == model.all_reduce(k, whole));
    RC_ASSERT(scatter.work >= 0 && gather.work >= 0);
  }
}

// acceptance.md: one channel, one op or more for each tensor, nothing delayed: no order gains more than the
// forward.
RC_GTEST_PROP(Wfbp, IsAtMostTheForwardAboveAnyOrderOnOneLink, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Cluster cluster = *testing::clusters({.max_links = 1, .fluid = false});
  Plan other = testing::random_plan(workload, cluster, {.synchronous = true, .prologue = false});
  std::vector<Op> ops;  // no message holds more than one block
  for (const Op& op : other.period[0].ops) {
    for (const std::int32_t block : op.blocks) {
      ops.push_back(op);
      ops.back().blocks = {block};
    }
  }
  other.period[0].ops = ops;
  const auto x = simulate_unless_stuck(other, workload, cluster);
  if (!x) RC_DISCARD("deadlock");
  const SimulationResult wfbp =
      simulate(std::get<Plan>(make_plan("wfbp", workload, cluster)), workload, cluster);
  RC_ASSERT(wfbp.iteration_ns() <=
            x->iteration_ns() + static_cast<double>(WorkloadIndex(workload).forward_total));
}

}  // namespace
}  // namespace gradweave
