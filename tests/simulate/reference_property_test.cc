// The fast simulators against the slow one, time by time.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "gradweave/error.h"
#include "simulate/machine.h"
#include "simulate/random_plan.h"
#include "simulate/reference.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

using testing::PlanShape;
using testing::Reference;

constexpr std::int64_t kIterations = 7;
constexpr std::int64_t kMargin = 8;

const testing::WorkloadShape kSmall{.max_layers = 4, .max_tensors = 2, .max_numel = 100'000};

class OpLog final : public Recorder {
 public:
  void wait(const WaitRecord&) override {}
  void compute(std::int64_t, const Step&, Nanoseconds, Nanoseconds) override {}
  void op(const OpRecord& run) override { runs.push_back(run); }
  bool detailed() const override { return true; }
  std::vector<OpRecord> runs;
};

// Runs `machine` beside the reference; both must get equally far with equal times.
void compare(Machine& machine, const Program& program, const Reference& reference) {
  OpLog log;
  for (std::int64_t n = 0; n < kIterations; ++n) {
    const std::optional<Nanoseconds> expected = reference.iteration_end(program.main_class, n);
    if (!expected) {
      RC_ASSERT_THROWS_AS(machine.run_to(kIterations, &log), InvalidInput);
      RC_TAG("deadlock");
      return;
    }
    machine.run_to(n + 1, &log);
    RC_ASSERT(machine.time() == *expected);
  }
  for (const OpRecord& run : log.runs) {
    if (run.end > machine.time()) continue;  // the reference stops there
    const auto same = std::ranges::find_if(reference.ops(), [&](const Reference::RunningOp& op) {
      return op.iteration == run.iteration && op.place == static_cast<std::size_t>(run.plan_op);
    });
    RC_ASSERT(same != reference.ops().end());
    RC_ASSERT(same->start == run.start);
    RC_ASSERT(same->end == run.end);
  }
}

struct Case {
  std::vector<Workload> classes;
  Cluster cluster;
  Plan plan;
  SimulationOptions options;
};

// One to three classes with their own times.
Case random_case(const PlanShape& shape, bool contention, bool levels = false) {
  Case c{.classes = {*testing::workloads(kSmall)},
         .cluster = *testing::clusters({.max_links = 3, .levels = levels})};
  levels &= c.cluster.workers_per_node > 1;
  while (c.classes.size() < 3 && *rc::gen::inRange(0, 3) == 0) {
    c.classes.push_back(c.classes.front());
    for (Layer& layer : c.classes.back().layers) layer.backward_ns += *rc::gen::inRange(0, 3'000'000);
  }
  c.plan = testing::random_plan(c.classes.front(), c.cluster, shape);
  if (levels) c.plan = testing::in_steps(std::move(c.plan), c.cluster);
  if (*rc::gen::inRange(0, 2) == 0) c.options.optimizer_ns = *rc::gen::inRange(0, 5'000'000);
  if (*rc::gen::inRange(0, 2) == 0) c.options.apply_ns = *rc::gen::inRange(0, 500'000);
  if (*rc::gen::inRange(0, 2) == 0) c.options.handover_ns = *rc::gen::inRange(0, 3'000'000);
  if (contention)
    c.options.contention = *rc::gen::element(Decimal{1, 0}, Decimal{15, 1}, Decimal{2, 0}, Decimal{1037, 3});
  if (contention && *rc::gen::inRange(0, 2) == 0) c.options.launch_ns = *rc::gen::inRange(0, 500'000);
  if (contention && *rc::gen::inRange(0, 2) == 0) c.options.burst_ns = *rc::gen::inRange(0, 5'000'000);
  return c;
}

void check_against_reference(const Case& c, bool shared, bool fine) {
  RC_LOG(to_json(c.plan));
  RC_LOG(to_json(c.classes.front()));
  const CostModel model(c.classes.front(), c.cluster);
  const Reference reference(c.plan, c.classes, c.cluster, c.options, kIterations, kMargin);
  const Program program =
      program_of(CompiledPlan(resolve(c.plan, model.index(), &c.cluster)), c.classes, model, c.options, fine);
  const auto machine = shared ? shared_machine(program, c.options.contention) : serial_machine(program);
  compare(*machine, program, reference);
}

RC_GTEST_PROP(SerialMachine, AgreesWithTheReference, ()) {
  check_against_reference(random_case({.early = true}, false), false, *rc::gen::arbitrary<bool>());
}

RC_GTEST_PROP(SerialMachine, AgreesWithTheReferenceOverTwoLevels, ()) {
  Case c = random_case({.prologue = false, .early = true}, false, true);
  for (PlanLink& link : c.plan.links) link.concurrency = 1;
  check_against_reference(c, false, *rc::gen::arbitrary<bool>());
}

RC_GTEST_PROP(SharedMachine, AgreesWithTheReferenceOverTwoLevels, ()) {
  check_against_reference(random_case({.fluid = true, .prologue = false, .early = true}, true, true), true,
                          true);
}

RC_GTEST_PROP(SharedMachine, AgreesWithTheReference, ()) {
  check_against_reference(random_case({.fluid = true, .early = true}, false), true,
                          *rc::gen::arbitrary<bool>());
}

RC_GTEST_PROP(SharedMachine, AgreesWithTheReferenceUnderContention, ()) {
  check_against_reference(random_case({.fluid = true, .early = true}, true), true, true);
}

}  // namespace
}  // namespace gradweave
