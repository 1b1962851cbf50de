// The run against the slow reference: every scheme and random plans, whatever the links' delays, wherever
// they are drained.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "gradweave/schemes.h"
#include "gradweave/validate.h"
#include "run/fake.h"
#include "run/reference.h"
#include "simulate/random_plan.h"
#include "testing/generators.h"
#include "testing/plans.h"

namespace gradweave {
namespace {

using testing::Job;
using testing::Outcome;
using testing::Values;

const testing::WorkloadShape kSmall{.max_layers = 4, .max_tensors = 2, .max_numel = 9};

// Of one node, or several, where the plan is of two levels.
Job random_job(const Plan& plan, bool plain = false) {
  const auto of_node = static_cast<int>(plan.workers_per_node);
  Job job{.seed = *rc::gen::arbitrary<std::uint32_t>(),
          .world_size = of_node * *rc::gen::inRange(1, of_node > 1 ? 3 : 4)};
  job.resumed_after = *rc::gen::inRange<std::int64_t>(-1, 12);
  if (plain) return job;
  job.leaves_unused = *rc::gen::arbitrary<bool>();
  job.accumulates = *rc::gen::arbitrary<bool>();
  return job;
}

std::vector<std::int64_t> random_stops() {
  return *rc::gen::container<std::vector<std::int64_t>>(*rc::gen::inRange<std::size_t>(1, 3),
                                                        rc::gen::inRange<std::int64_t>(0, 8));
}

// All ranks end with the same bits, and with the reference's values but for rounding: it adds up in another
// order.
Outcome check(const Plan& plan, const Workload& workload, const Job& job,
              const std::vector<std::int64_t>& stops, bool ordered = false) {
  RC_LOG(to_json(plan));
  RC_LOG(to_json(workload));
  testing::Reference reference(plan, workload, job);
  for (std::int64_t stop : stops) {
    for (std::int64_t n = 0; n < stop; ++n) reference.iterate();
    reference.drain();
  }
  const Outcome outcome = testing::train(plan, workload, job, stops, ordered);
  for (const std::string& error : outcome.errors) RC_ASSERT(error == "");
  for (std::size_t r = 0; r < outcome.parameters.size(); ++r) {
    RC_ASSERT(outcome.parameters[r] == outcome.parameters[0]);
    RC_ASSERT(!ordered || outcome.launches[r] == outcome.launches[0]);
    for (std::size_t t = 0; t < outcome.parameters[r].size(); ++t) {
      const Values& found = outcome.parameters[r][t];
      const Values& expected = reference.parameters()[r][t];
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (!(std::abs(found[i] - expected[i]) <= 1e-9)) {
          RC_FAIL("rank " + std::to_string(r) + ", tensor " + std::to_string(t) + "[" + std::to_string(i) +
                  "]: " + std::to_string(found[i]) + ", reference " + std::to_string(expected[i]));
        }
      }
    }
  }
  return outcome;
}

// Links of an accelerator, whose ops the training thread launches. The loop's own collectives come at random points in the same queue,
// so that every rank has to launch everything in one order; a device finds ops that are launched before they are due.
void check_at_once(const Plan& plan, const Workload& workload, Job job,
                   const std::vector<std::int64_t>& stops) {
  const auto of_node = static_cast<int>(plan.workers_per_node);
  job.world_size = of_node * *rc::gen::inRange(of_node > 1 ? 1 : 2, of_node > 1 ? 3 : 5);
  job.one_program = true;
  const Outcome by_threads = testing::train(plan, workload, job, stops, true);
  job.at_once = true;
  const Outcome at_once = check(plan, workload, job, stops, true);
  RC_ASSERT(at_once.parameters == by_threads.parameters);
  RC_ASSERT(at_once.launches == by_threads.launches);
}

int pick(int low, int high) { return *rc::gen::inRange(low, high + 1); }

Cluster random_cluster(bool levels = false) {
  Cluster cluster = *testing::clusters({.max_links = 3, .max_workers = 64, .levels = levels});
  if (!levels) return cluster;
  const std::int64_t nodes = cluster.workers / cluster.workers_per_node;
  cluster.workers_per_node = pick(2, 3);
  cluster.workers = nodes * cluster.workers_per_node;
  return cluster;
}

struct Variant {
  std::string scheme;
  std::map<std::string, std::string> options;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.scheme; }

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const SchemeInfo& scheme : schemes()) {
    if (scheme.name != "auto") all.push_back({std::string(scheme.name), {}});
  }
  all.push_back({"deft", {{"merge", "mean"}}});
  all.push_back({"deft", {{"correction", "local"}}});
  all.push_back({"covap", {{"interval", "3"}}});
  all.push_back({"dreamddp", {{"forward_overlap", "on"}, {"period", "3"}}});
  all.push_back({"dreamddp", {{"forward_overlap", "only"}, {"period", "3"}}});
  return all;
}

class EveryScheme : public ::testing::TestWithParam<Variant> {};

TEST_P(EveryScheme, RunsAsTheReference) {
  const bool held = rc::check("equal ranks, the reference's values", [] {
    const Workload workload = *testing::workloads(kSmall);
    const Cluster cluster = random_cluster(*rc::gen::arbitrary<bool>());
    const PlanResult result = make_plan(GetParam().scheme, workload, cluster, GetParam().options);
    const Plan* plan = std::get_if<Plan>(&result);
    if (plan == nullptr) return;
    const bool ordered = *rc::gen::arbitrary<bool>();
    check(*plan, workload, random_job(*plan), random_stops(), ordered);
  });
  EXPECT_TRUE(held);
}

std::string name_of(const ::testing::TestParamInfo<Variant>& info) {
  return info.param.scheme + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(Run, EveryScheme, ::testing::ValuesIn(variants()), name_of);

RC_GTEST_PROP(Run, EveryFamilyWithGradientsThatAreLeftOut, ()) {
  for (auto& [name, plan] : testing::all_families()) {
    RC_LOG(name);
    Job job = random_job(plan);
    if (name != "partial") {  // which steps in the backward, before anything is known
      job.spoilt = *rc::gen::element(0.0, 0.3);
      job.dropped = *rc::gen::element(0.0, 0.3);
    }
    plan.residual.every = 2;
    check(plan, testing::three_layers(), job, random_stops(), *rc::gen::arbitrary<bool>());
  }
}

template <typename Item>
Item& any_of(std::vector<Item>& items) {
  return items[static_cast<std::size_t>(pick(0, static_cast<int>(items.size()) - 1))];
}

Point random_point(const Workload& workload) {
  const std::int32_t layer = pick(0, static_cast<int>(workload.layers.size()) - 1);
  return *rc::gen::element(Point{PointKind::kIterationEnd}, Point{PointKind::kForwardStart, layer},
                           Point{PointKind::kBackwardEnd, layer});
}

// Applies what the apply uses `later` iterations later.
void postpone(Plan& plan, std::size_t iteration, std::size_t apply, int later) {
  std::vector<Apply>& from = plan.period[iteration].applies;
  Apply moved = from[apply];
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(apply));
  for (std::int32_t& m : moved.merges) m -= later;
  std::vector<Apply>& to =
      plan.period[(iteration + static_cast<std::size_t>(later)) % plan.period.size()].applies;
  to.insert(to.begin() + pick(0, static_cast<int>(to.size())), moved);
}

// Makes the reduced gradients that the apply uses corrections of local steps.
void correct(Plan& plan, Apply& apply) {
  const Apply reduced = apply;
  if (reduced.source != Source::kReducedGradient) return;
  apply.correction = Correction::kLocal;
  for (Iteration& iteration : plan.period) {
    iteration.applies.push_back({.at = *rc::gen::element(Point{PointKind::kIterationEnd}, reduced.at),
                                 .blocks = reduced.blocks,
                                 .merges = {0},
                                 .source = Source::kLocalGradient,
                                 .slices = reduced.slices});
  }
}

// One change that leaves many plans valid and their meaning another.
Plan changed(Plan plan, const Workload& workload) {
  const auto at = static_cast<std::size_t>(pick(0, static_cast<int>(plan.period.size()) - 1));
  Iteration& iteration = plan.period[at];
  if (iteration.ops.empty() || iteration.applies.empty()) return plan;
  Op& op = any_of(iteration.ops);
  Apply& apply = any_of(iteration.applies);
  switch (pick(0, 10)) {
    case 0:
      std::swap(op, any_of(iteration.ops));
      break;
    case 1:
      std::swap(apply, any_of(iteration.applies));
      break;
    case 2:
      apply.at = random_point(workload);
      break;
    case 3:
      postpone(plan, at, static_cast<std::size_t>(&apply - iteration.applies.data()), pick(1, 3));
      break;
    case 4:
      apply.at = random_point(workload);
      postpone(plan, at, static_cast<std::size_t>(&apply - iteration.applies.data()), pick(0, 1));
      break;
    case 5:
      op.release.point = random_point(workload);
      op.release.point.iteration = pick(-2, 0);
      break;
    case 6:
      apply.mode = apply.mode == Mode::kReplace ? Mode::kCorrect : Mode::kReplace;
      break;
    case 7:
      correct(plan, apply);
      break;
    case 8: {  // listed in the next iteration
      Op listed = op;
      for (std::int32_t& m : listed.merges) --m;
      --listed.release.point.iteration;
      iteration.ops.erase(iteration.ops.begin() + (&op - iteration.ops.data()));
      std::vector<Op>& to = plan.period[(at + 1) % plan.period.size()].ops;
      to.insert(to.begin() + pick(0, static_cast<int>(to.size())), listed);
      break;
    }
    case 9: {  // in two parts
      if (apply.blocks.size() < 2) break;
      Apply rest = apply;
      rest.blocks.assign(apply.blocks.begin() + 1, apply.blocks.end());
      apply.blocks.resize(1);
      iteration.applies.insert(
          iteration.applies.begin() + pick(0, static_cast<int>(iteration.applies.size())), rest);
      break;
    }
    default:
      std::ranges::rotate(plan.period, plan.period.begin() + static_cast<std::ptrdiff_t>(at));
      plan.prologue.insert(plan.prologue.begin(), plan.period.begin(), plan.period.end());
  }
  return plan;
}

// Of two levels where the cluster has them.
Plan random_plan(const Workload& workload, const Cluster& cluster, testing::PlanShape shape) {
  if (!has_levels(cluster)) return testing::random_plan(workload, cluster, shape);
  shape.prologue = false;
  return testing::in_steps(testing::random_plan(workload, cluster, shape), cluster);
}

// A random plan: every one that is refused on the way has a rule with a reason and a remedy.
Plan random_valid_plan(const Workload& workload, bool levels = false) {
  const Cluster cluster = random_cluster(levels);
  Plan plan = random_plan(workload, cluster, {.fluid = true, .whole_tensors = *rc::gen::arbitrary<bool>()});
  int changes = pick(0, 30), kept = 0;
  for (bool valid = false; !valid || changes > 0; --changes) {
    const Plan next = valid ? changed(plan, workload) : plan;
    const Validation validation = validate(next, workload);
    for (const Violation& v : validation.violations)
      RC_ASSERT(v.rule > 0 && !v.what.empty() && !v.where.empty() && !v.remedy.empty());
    if (validation.valid()) kept += valid ? 1 : 0, plan = next, valid = true;
    if (!valid) plan = random_plan(workload, cluster, {.fluid = true, .any_order = false});
  }
  RC_TAG(kept);
  return plan;
}

// Every one runs to its end.
RC_GTEST_PROP(Run, RandomPlans, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Plan plan = random_valid_plan(workload);
  check(plan, workload, random_job(plan), random_stops(), *rc::gen::arbitrary<bool>());
}

RC_GTEST_PROP(Run, RandomPlansOverTwoLevels, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Plan plan = random_valid_plan(workload, true);
  check(plan, workload, random_job(plan), random_stops(), *rc::gen::arbitrary<bool>());
}

RC_GTEST_PROP(Run, RandomPlansOnLinksThatReturnAtOnce, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Plan plan = random_valid_plan(workload, *rc::gen::arbitrary<bool>());
  check_at_once(plan, workload, random_job(plan), random_stops());
}

RC_GTEST_PROP(Run, AnyFamilyOnLinksThatReturnAtOnce, ()) {
  const auto [name, plan] = *rc::gen::elementOf(testing::all_families());
  RC_TAG(name);
  Job job = random_job(plan);
  if (name != "partial") job.spoilt = *rc::gen::element(0.0, 0.3);
  check_at_once(plan, testing::three_layers(), job, random_stops());
}

}  // namespace
}  // namespace gradweave
