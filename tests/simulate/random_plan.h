// Random plans that lose nothing: every block synchronised, decoupled, delayed or averaged, in random order
// on random links. Some deadlock (an op that is waited for, behind one that is released too late): the test
// has to expect it.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gradweave/cost.h"
#include "gradweave/json.h"
#include "gradweave/plan.h"

namespace gradweave {

inline void showValue(const Plan& plan, std::ostream& out) { out << to_json(plan); }

}  // namespace gradweave

namespace gradweave::testing {

struct PlanShape {
  bool fluid = false;  // links of any concurrency, else all 1
  bool synchronous =
      false;  // only all-reduces of this iteration's gradients, applied before the next backward
  bool prologue = true;
  bool delays = true;
  bool early = false;  // some releases before the data, which the validator refuses and the simulator can do
  bool whole_tensors = false;  // the parts of a tensor travel together
  bool any_order =
      true;  // half of the plans with ops in random order, else about as their data becomes ready
};

namespace random_plan_detail {

inline int pick(int low, int high) { return *rc::gen::inRange(low, high + 1); }
inline bool one_in(int n) { return pick(1, n) == 1; }

// Blocks of one dtype that travel together.
struct Group {
  std::vector<std::int32_t> blocks;
  std::int32_t first_layer = 0;
};

inline std::vector<Group> groups_of(const WorkloadIndex& index, Plan& plan, bool whole_tensors) {
  std::vector<Group> groups;
  DType last = DType::kFloat32;
  for (std::size_t t = index.tensors.size(); t-- > 0;) {
    const TensorPlace& place = index.tensors[t];
    const std::int64_t parts = std::min<std::int64_t>(place.numel, pick(1, 3));
    for (std::int64_t p = 0; p < parts; ++p) {
      const bool joins = whole_tensors && p > 0;
      if (groups.empty() || last != place.dtype || (!joins && one_in(2))) groups.emplace_back();
      last = place.dtype;
      groups.back().blocks.push_back(static_cast<std::int32_t>(plan.blocks.size()));
      groups.back().first_layer = static_cast<std::int32_t>(place.layer);
      plan.blocks.push_back({index.tensor_names[t], place.numel * p / parts, place.numel * (p + 1) / parts});
    }
  }
  return groups;
}

// A release that is no earlier than the group's gradients of `data`, an iteration relative to the op's.
inline Release release_after(const Group& group, std::int32_t data, const PlanShape& shape) {
  Release release{{PointKind::kBackwardEnd, group.first_layer, data}};
  if (one_in(4) && group.first_layer > 0) release.point.layer = pick(0, group.first_layer - 1);
  if (data < 0 && one_in(3)) release.point = {PointKind::kIterationStart, 0, 0};
  if (data < 0 && group.first_layer > 0 && one_in(6))
    release.point = {PointKind::kForwardStart, pick(0, group.first_layer - 1), 0};
  if (shape.delays && one_in(4)) release.delay_ns = pick(0, 2'000'000);
  if (shape.early && one_in(8)) release = {{PointKind::kIterationStart, 0, data}, pick(0, 50'000'000)};
  return release;
}

class Builder {
 public:
  Builder(Plan& plan, const PlanShape& shape) : plan_(plan), shape_(shape) {}

  // Synchronised in every iteration; applied at its end or where the next forward needs it.
  void synchronise(const Group& group) {
    const bool listed_late = one_in(3);
    const std::int32_t data = listed_late ? -1 : 0;
    const bool overlap = listed_late || one_in(2);
    Op op{.link = link(),
          .blocks = group.blocks,
          .merges = {data},
          .release = release_after(group, data, shape_)};
    Op gather = op;
    const bool decouple = !shape_.synchronous && one_in(3);
    if (decouple) {
      op.collective = Collective::kReduceScatter;
      gather.collective = Collective::kAllGather;
      gather.link = link();
    }
    for (Iteration& iteration : plan_.period) {
      iteration.ops.push_back(op);
      if (decouple) iteration.ops.push_back(gather);
      Apply apply{.at = {PointKind::kIterationEnd}, .blocks = group.blocks, .merges = {0}, .slices = true};
      if (overlap) apply.at = {PointKind::kForwardStart, group.first_layer}, apply.merges = {-1};
      iteration.applies.push_back(apply);
    }
  }

  // The gradients of a whole period are merged, sent once, and applied `late` iterations after the last.
  void delay(const Group& group) {
    const auto period = static_cast<std::int32_t>(plan_.period.size());
    const std::int32_t late = pick(0, 2);
    Op op{.link = link(), .blocks = group.blocks, .release = release_after(group, 0, shape_)};
    Apply apply{.at = {PointKind::kIterationEnd}, .blocks = group.blocks, .slices = true};
    for (std::int32_t m = 1 - period; m <= 0; ++m) {
      op.merges.push_back(m);
      apply.merges.push_back(m - late);
    }
    const int slot = pick(0, period - 1);
    plan_.period[static_cast<std::size_t>(slot)].ops.push_back(op);
    plan_.period[static_cast<std::size_t>((slot + late) % period)].applies.push_back(apply);
  }

  // A local step in every iteration, the parameters averaged once a period.
  void average(const Group& group) {
    const auto period = static_cast<std::int32_t>(plan_.period.size());
    const bool in_backward = one_in(2);
    for (Iteration& iteration : plan_.period) {
      Apply step{.at = {PointKind::kIterationEnd},
                 .blocks = group.blocks,
                 .merges = {0},
                 .source = Source::kLocalGradient,
                 .slices = true};
      if (in_backward) step.at = {PointKind::kBackwardEnd, group.first_layer};
      iteration.applies.push_back(step);
    }
    const std::int32_t late = pick(1, 3);
    const int slot = pick(0, period - 1);
    Op op{.link = link(),
          .payload = Payload::kParameter,
          .blocks = group.blocks,
          .merges = {0},
          .release = release_after(group, 0, shape_)};
    plan_.period[static_cast<std::size_t>(slot)].ops.push_back(op);
    Apply apply{.at = {PointKind::kIterationEnd},
                .blocks = group.blocks,
                .merges = {-late},
                .source = Source::kAveragedParameter,
                .mode = Mode::kCorrect,
                .slices = true};
    if (late == 1 && one_in(2)) apply.at = {PointKind::kForwardStart, group.first_layer};
    plan_.period[static_cast<std::size_t>((slot + late) % period)].applies.push_back(apply);
  }

 private:
  std::string link() const {
    return plan_.links[static_cast<std::size_t>(pick(0, static_cast<int>(plan_.links.size()) - 1))].name;
  }

  Plan& plan_;
  const PlanShape& shape_;
};

}  // namespace random_plan_detail

// Returns a random plan for the workload on the cluster.
inline Plan random_plan(const Workload& workload, const Cluster& cluster, const PlanShape& shape = {}) {
  using namespace random_plan_detail;
  const WorkloadIndex index(workload);
  Plan plan{.scheme = "random", .workers = cluster.workers};
  for (const Link& link : cluster.links) plan.links.push_back({link.name, shape.fluid ? pick(0, 3) : 1});
  plan.period.resize(static_cast<std::size_t>(shape.synchronous ? 1 : pick(1, 3)));
  Builder builder(plan, shape);
  for (const Group& group : groups_of(index, plan, shape.whole_tensors)) {
    const int style = shape.synchronous ? 0 : pick(0, 3);
    style <= 1 ? builder.synchronise(group) : style == 2 ? builder.delay(group) : builder.average(group);
  }
  for (Iteration& iteration : plan.period) {
    std::ranges::stable_partition(iteration.ops, [](const Op& op) { return op.merges.back() < 0; });
    if (shape.any_order && one_in(2)) {
      for (std::size_t i = iteration.ops.size(); i > 1; --i) {
        std::swap(iteration.ops[i - 1],
                  iteration.ops[static_cast<std::size_t>(pick(0, static_cast<int>(i) - 1))]);
      }
    }
  }
  for (Iteration& iteration : plan.period) {
    for (Apply& apply : iteration.applies) apply.slices = !shape.whole_tensors;
  }
  // A prologue that does less: what it leaves out is waited for by nobody.
  if (shape.prologue && one_in(2)) {
    plan.prologue.push_back(plan.period.back());
    if (!plan.prologue[0].ops.empty() && one_in(2)) plan.prologue[0].ops.pop_back();
  }
  return plan;
}

// The plan, which has no prologue, over two levels, each op being taken in steps: a reduce_scatter on a link inside
// somewhere before it in its iteration's list, and an all_gather somewhere after it.
inline Plan in_steps(Plan plan, const Cluster& cluster) {
  using namespace random_plan_detail;
  plan.workers = cluster.workers;
  plan.workers_per_node = cluster.workers_per_node;
  for (PlanLink& link : plan.links) link.level = Level::kBetween;
  for (const Link& link : cluster.inside->links)
    plan.links.push_back({link.name, link.concurrency, Level::kInside});
  for (Iteration& iteration : plan.period) {
    const std::vector<Op> ops = std::exchange(iteration.ops, {});
    for (const Op& op : ops) {
      Op step = op;
      const int links = static_cast<int>(cluster.inside->links.size());
      step.link = cluster.inside->links[static_cast<std::size_t>(pick(0, links - 1))].name;
      const auto size = [&] { return static_cast<int>(iteration.ops.size()); };
      if (op.collective != Collective::kAllGather) {
        step.collective = Collective::kReduceScatter;
        iteration.ops.insert(iteration.ops.begin() + pick(0, size()), step);
      }
      iteration.ops.push_back(op);
      if (op.collective == Collective::kReduceScatter) continue;
      step.collective = Collective::kAllGather;
      iteration.ops.push_back(step);
    }
    // Gathers wait, some for a while, for others to pass.
    for (std::size_t k = iteration.ops.size(); k-- > 1;) {
      const bool gathers = iteration.ops[k - 1].collective == Collective::kAllGather &&
                           find_inside_link(cluster, iteration.ops[k - 1].link);
      if (gathers && one_in(2)) std::swap(iteration.ops[k - 1], iteration.ops[k]);
    }
  }
  return plan;
}

}  // namespace gradweave::testing
