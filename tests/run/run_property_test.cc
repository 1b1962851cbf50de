// The run against the slow reference: every scheme and random plans, whatever the links' delays, wherever
// they are drained.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "gradweave/error.h"
#include "gradweave/schemes.h"
#include "gradweave/validate.h"
#include "run/fake.h"
#include "run/reference.h"
#include "run/waits.h"
#include "simulate/random_plan.h"
#include "testing/generators.h"
#include "testing/plans.h"

namespace gradweave {
namespace {

using testing::Job;
using testing::Outcome;
using testing::Values;

const testing::WorkloadShape kSmall{.max_layers = 4, .max_tensors = 2, .max_numel = 9};

Job random_job(bool plain = false) {
  Job job{.seed = *rc::gen::arbitrary<std::uint32_t>(), .world_size = *rc::gen::inRange(1, 4)};
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
void check(const Plan& plan, const Workload& workload, const Job& job, const std::vector<std::int64_t>& stops,
           bool ordered = false) {
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
}

// Whether something that is applied before a layer's forward is of another layer.
bool updates_later_layers(const Plan& plan, const WorkloadIndex& index) {
  for (const Iteration& iteration : plan.period) {
    for (const Apply& apply : iteration.applies) {
      if (apply.at.kind != PointKind::kForwardStart) continue;
      for (std::int32_t b : apply.blocks) {
        const std::string& tensor = plan.blocks[static_cast<std::size_t>(b)].tensor;
        if (index.tensors[*index.find_tensor(tensor)].layer != static_cast<std::size_t>(apply.at.layer))
          return true;
      }
    }
  }
  return false;
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
  return all;
}

class EveryScheme : public ::testing::TestWithParam<Variant> {};

TEST_P(EveryScheme, RunsAsTheReference) {
  const bool held = rc::check("equal ranks, the reference's values", [] {
    const Workload workload = *testing::workloads(kSmall);
    const Cluster cluster = *testing::clusters({.max_links = 3, .max_workers = 64});
    const PlanResult result = make_plan(GetParam().scheme, workload, cluster, GetParam().options);
    const Plan* plan = std::get_if<Plan>(&result);
    if (plan == nullptr) return;
    const bool ordered = *rc::gen::arbitrary<bool>();
    run::check_waits(calendar_of(*plan, workload), ordered);
    check(*plan, workload, random_job(), random_stops(), ordered);
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
    Job job = random_job();
    if (name != "partial") {  // which steps in the backward, before anything is known
      job.spoilt = *rc::gen::element(0.0, 0.3);
      job.dropped = *rc::gen::element(0.0, 0.3);
    }
    plan.residual.every = 2;
    check(plan, testing::three_layers(), job, random_stops(), *rc::gen::arbitrary<bool>());
  }
}

RC_GTEST_PROP(Run, RandomPlans, ()) {
  const Workload workload = *testing::workloads(kSmall);
  const Cluster cluster = *testing::clusters({.max_links = 3, .max_workers = 64});
  const Plan plan =
      testing::random_plan(workload, cluster, {.fluid = true, .whole_tensors = *rc::gen::arbitrary<bool>()});
  if (!validate(plan, workload).valid()) {
    RC_TAG("not valid");
    return;
  }
  const bool ordered = *rc::gen::arbitrary<bool>();
  try {
    run::check_waits(calendar_of(plan, workload), ordered);
  } catch (const InvalidInput&) {
    RC_TAG("waits for ever");
    return;
  }
  Job job = random_job();
  // Where the layer before which it lands is left out in a forward, an update of later layers lands too late
  // for them.
  if (updates_later_layers(plan, WorkloadIndex(workload))) job.leaves_unused = false;
  check(plan, workload, job, random_stops(), ordered);
}

}  // namespace
}  // namespace gradweave
