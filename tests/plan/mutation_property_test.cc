// A valid plan with one random change that loses, repeats or moves something is refused, and no change at
// all, however wild, makes the validator throw.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/validate.h"
#include "testing/generators.h"

namespace gradweave {
namespace {

struct Case {
  Workload workload;
  Plan plan;
};

// A plan of a random scheme with at least one op.
Case random_case() {
  const Workload workload = *testing::workloads({.max_layers = 5});
  const Cluster cluster = *testing::clusters({.max_links = 2});
  const SchemeInfo& scheme = schemes()[*rc::gen::inRange<std::size_t>(0, schemes().size())];
  PlanResult result = make_plan(scheme.name, workload, cluster);
  RC_PRE(std::holds_alternative<Plan>(result));
  Plan plan = std::get<Plan>(std::move(result));
  RC_PRE(std::ranges::any_of(plan.period, [](const Iteration& i) { return !i.ops.empty(); }));
  RC_ASSERT(validate(plan, workload).valid());
  return {workload, std::move(plan)};
}

template <typename Item>
std::size_t any_index(const std::vector<Item>& items) {
  return *rc::gen::inRange<std::size_t>(0, items.size());
}

// An iteration of the period that has ops, or applies.
template <typename Items>
Iteration& any_with(Plan& plan, Items items) {
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < plan.period.size(); ++i) {
    if (!(plan.period[i].*items).empty()) candidates.push_back(i);
  }
  RC_PRE(!candidates.empty());
  return plan.period[candidates[any_index(candidates)]];
}

void drop_op(Plan& plan) {
  Iteration& iteration = any_with(plan, &Iteration::ops);
  iteration.ops.erase(iteration.ops.begin() + static_cast<std::ptrdiff_t>(any_index(iteration.ops)));
}

void repeat_op(Plan& plan) {
  Iteration& iteration = any_with(plan, &Iteration::ops);
  iteration.ops.push_back(iteration.ops[any_index(iteration.ops)]);
}

void drop_apply(Plan& plan) {
  Iteration& iteration = any_with(plan, &Iteration::applies);
  iteration.applies.erase(iteration.applies.begin() +
                          static_cast<std::ptrdiff_t>(any_index(iteration.applies)));
}

void repeat_apply(Plan& plan) {
  Iteration& iteration = any_with(plan, &Iteration::applies);
  iteration.applies.push_back(iteration.applies[any_index(iteration.applies)]);
}

void shift_boundary(Plan& plan) {
  Block& block = plan.blocks[any_index(plan.blocks)];
  block.begin += *rc::gen::element(-1, 1);
}

void drop_block_of_op(Plan& plan) {
  Iteration& iteration = any_with(plan, &Iteration::ops);
  Op& op = iteration.ops[any_index(iteration.ops)];
  op.blocks.erase(op.blocks.begin() + static_cast<std::ptrdiff_t>(any_index(op.blocks)));
}

void release_early(Plan& plan) {
  Iteration& iteration = any_with(plan, &Iteration::ops);
  Op& op = iteration.ops[any_index(iteration.ops)];
  op.release = {{PointKind::kForwardStart, 0, op.merges.back()}};
}

void unknown_link(Plan& plan) {
  Iteration& iteration = any_with(plan, &Iteration::ops);
  iteration.ops[any_index(iteration.ops)].link += "?";
}

void other_merges(Plan& plan) {
  Iteration& iteration = any_with(plan, &Iteration::ops);
  Op& op = iteration.ops[any_index(iteration.ops)];
  op.merges.insert(op.merges.begin(), op.merges.front() - 1);
}

void index_out_of_range(Plan& plan) {
  Iteration& iteration = any_with(plan, &Iteration::applies);
  iteration.applies[any_index(iteration.applies)].blocks.push_back(
      *rc::gen::element(-1, INT32_MAX, INT32_MIN));
}

RC_GTEST_PROP(MutationProperty, OneChangeIsReported, ()) {
  static constexpr std::pair<const char*, void (*)(Plan&)> kChanges[] = {
      {"drop op", drop_op},
      {"repeat op", repeat_op},
      {"drop apply", drop_apply},
      {"repeat apply", repeat_apply},
      {"shift boundary", shift_boundary},
      {"drop block of op", drop_block_of_op},
      {"release early", release_early},
      {"unknown link", unknown_link},
      {"other merges", other_merges},
      {"index out of range", index_out_of_range},
  };
  Case valid = random_case();
  const auto& [name, change] = kChanges[*rc::gen::inRange<std::size_t>(0, std::size(kChanges))];
  change(valid.plan);
  RC_LOG() << name << "\n" << to_json(valid.plan);
  const Validation validation = validate(valid.plan, valid.workload);
  RC_ASSERT(!validation.valid());
  for (const Violation& violation : validation.violations) {
    RC_ASSERT(violation.rule >= 1 && violation.rule <= 7);
    RC_ASSERT(!violation.what.empty() && !violation.where.empty() && !violation.remedy.empty());
  }
}

std::int32_t wild() { return *rc::gen::element(0, 1, -1, 2, -2, 7, -1000, INT32_MAX, INT32_MIN); }

// Scrambles numbers everywhere. The result may be valid or not: it must be judged, and be the same after a
// round trip.
RC_GTEST_PROP(MutationProperty, NoPlanIsTooWild, ()) {
  Case wild_case = random_case();
  Plan& plan = wild_case.plan;
  const int changes = *rc::gen::inRange(1, 6);
  for (int i = 0; i < changes; ++i) {
    Op& op = any_with(plan, &Iteration::ops).ops[0];
    Iteration& iteration = any_with(plan, &Iteration::applies);
    Apply& apply = iteration.applies[any_index(iteration.applies)];
    switch (*rc::gen::inRange(0, 13)) {
      case 0:
        op.merges = {wild(), wild()};
        break;
      case 1:
        op.blocks = {wild(), wild()};
        break;
      case 2:
        op.release.point = {static_cast<PointKind>(*rc::gen::inRange(0, 6)), wild(), wild()};
        break;
      case 3:
        op.release.delay_ns = *rc::gen::element<Nanoseconds>(-1, INT64_MAX, INT64_MIN);
        break;
      case 4:
        op.collective = static_cast<Collective>(*rc::gen::inRange(0, 4));
        break;
      case 5:
        op.payload = static_cast<Payload>(*rc::gen::inRange(0, 2));
        break;
      case 6:
        apply.at = {static_cast<PointKind>(*rc::gen::inRange(0, 6)), wild(), wild()};
        break;
      case 7:
        apply.merges = {wild()};
        break;
      case 8:
        apply.source = static_cast<Source>(*rc::gen::inRange(0, 3));
        break;
      case 9:
        apply.correction = Correction::kLocal;
        break;
      case 10:
        plan.blocks[any_index(plan.blocks)].begin = *rc::gen::element<std::int64_t>(-1, INT64_MAX, INT64_MIN);
        break;
      case 11:
        iteration.dropped.push_back(wild());
        break;
      default:
        plan.prologue.push_back(iteration);
        break;
    }
  }
  const Validation validation = validate(plan, wild_case.workload);
  RC_CLASSIFY(validation.valid());
  RC_ASSERT(parse_plan(to_json(plan)) == plan);
}

}  // namespace
}  // namespace gradweave
