// The run plan against a slow lookup straight from the plan's definition: one iteration after another, by name,
// through the prologue, the start where merges are cut, and several periods.
#include "plan/run_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/validate.h"
#include "simulate/random_plan.h"
#include "testing/generators.h"
#include "testing/plans.h"

namespace gradweave {
namespace {

// The iterations that `merges` means in iteration n: those that exist.
std::set<std::int64_t> meant(const std::vector<std::int32_t>& merges, std::int64_t n) {
  std::set<std::int64_t> iterations;
  for (const std::int32_t m : merges) {
    if (n + m >= 0) iterations.insert(n + m);
  }
  return iterations;
}

bool holds(const std::vector<std::int32_t>& list, std::int32_t item) {
  return std::ranges::find(list, item) != list.end();
}

struct SlowOp {
  std::int64_t iteration = 0;
  std::int32_t place = 0;  // among the ops of the iteration that exist
  const Op* op = nullptr;
  bool operator==(const SlowOp& other) const { return iteration == other.iteration && place == other.place; }
};

class SlowPlan {
 public:
  // Knows the ops of iterations [0, end).
  SlowPlan(const Plan& plan, std::int64_t end) : plan_(plan) {
    for (std::int64_t n = 0; n < end; ++n) {
      std::int32_t place = 0;
      for (const Op& op : iteration_at(plan, n).ops) {
        if (!meant(op.merges, n).empty()) ops_.push_back({n, place++, &op});
      }
    }
  }

  std::vector<SlowOp> ops_of(std::int64_t n) const {
    std::vector<SlowOp> ops;
    std::ranges::copy_if(ops_, std::back_inserter(ops), [&](const SlowOp& op) { return op.iteration == n; });
    return ops;
  }

  // The op that sends the gradient, or parameters, of a block after iteration n on their way.
  std::optional<SlowOp> sender(Payload payload, std::int32_t block, std::int64_t n) const {
    for (const SlowOp& op : ops_) {
      if (op.op->payload == payload && op.op->collective != Collective::kAllGather &&
          holds(op.op->blocks, block) && meant(op.op->merges, op.iteration).contains(n))
        return op;
    }
    return std::nullopt;
  }

  // The op whose end delivers a block of a generation: the last of its steps.
  std::optional<SlowOp> deliverer(Payload payload, std::int32_t block,
                                  const std::set<std::int64_t>& generation) const {
    std::optional<SlowOp> last;
    for (const SlowOp& op : ops_) {
      if (op.op->payload == payload && op.op->collective != Collective::kReduceScatter &&
          holds(op.op->blocks, block) && meant(op.op->merges, op.iteration) == generation)
        last = op;
    }
    return last;
  }

  // The steps of the op's message, in their order.
  std::vector<SlowOp> steps_of(const SlowOp& step) const {
    std::vector<SlowOp> steps;
    std::ranges::copy_if(ops_, std::back_inserter(steps), [&](const SlowOp& op) {
      return op.op->payload == step.op->payload && op.op->blocks == step.op->blocks &&
             meant(op.op->merges, op.iteration) == meant(step.op->merges, step.iteration);
    });
    return steps;
  }

  // The last iteration with an apply that uses the result of `op`, or of its all_gather.
  std::int64_t last_use(const SlowOp& op, std::int64_t end) const {
    const std::set<std::int64_t> generation = meant(op.op->merges, op.iteration);
    std::int64_t last = op.iteration;
    for (std::int64_t n = op.iteration; n < end; ++n) {
      for (const Apply& apply : iteration_at(plan_, n).applies) {
        const Payload payload =
            apply.source == Source::kAveragedParameter ? Payload::kParameter : Payload::kGradient;
        const bool uses = apply.source != Source::kLocalGradient && op.op->payload == payload &&
                          meant(apply.merges, n) == generation &&
                          std::ranges::any_of(apply.blocks, [&](auto b) { return holds(op.op->blocks, b); });
        if (uses) last = n;
      }
    }
    return last;
  }

 private:
  const Plan& plan_;
  std::vector<SlowOp> ops_;
};

std::int64_t begin_of(const Plan& plan, std::int32_t block) {
  return plan.blocks[static_cast<std::size_t>(block)].begin;
}

std::int64_t elements_before(const Plan& plan, const Op& op, std::int32_t block) {
  std::int64_t elements = 0;
  for (auto b = op.blocks.begin(); *b != block; ++b) {
    elements += plan.blocks[static_cast<std::size_t>(*b)].end - begin_of(plan, *b);
  }
  return elements;
}

std::int32_t furthest_back(const Plan& plan) {
  std::int32_t back = 0;
  const auto note = [&](const auto& item) {
    for (const std::int32_t m : item.merges) back = std::max(back, -m);
  };
  for (const auto* list : {&plan.prologue, &plan.period}) {
    for (const Iteration& iteration : *list) {
      std::ranges::for_each(iteration.ops, note);
      std::ranges::for_each(iteration.applies, note);
    }
  }
  return back;
}

class Comparison {
 public:
  Comparison(const Plan& plan, const Workload& workload)
      : plan_(plan),
        run_plan_(run_plan_of(plan, workload)),
        back_(furthest_back(plan)),
        end_(std::ssize(plan.prologue) + 3 * back_ + 3 * std::ssize(plan.period) + 1),
        slow_(plan, end_ + back_) {}

  void run() {
    for (std::int64_t n = 0; n < end_; ++n) {
      compare_ops(n);
      compare_gradients(n);
      compare_applies(n);
    }
  }

 private:
  OpRef from(std::int64_t n, const std::optional<SlowOp>& op) const {
    if (!op) return {};
    return {static_cast<std::int32_t>(op->iteration - n), op->place};
  }

  void compare_ops(std::int64_t n) {
    const std::vector<SlowOp> expected = slow_.ops_of(n);
    const std::vector<RunOp>& ops = run_plan_[n].ops;
    RC_ASSERT(ops.size() == expected.size());
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const RunOp& op = ops[i];
      const Op& listed = *expected[i].op;
      RC_ASSERT(run_plan_.links[static_cast<std::size_t>(op.link)] == listed.link);
      RC_ASSERT(op.collective == listed.collective);
      RC_ASSERT(op.payload == listed.payload);
      RC_ASSERT(op.blocks == listed.blocks);
      RC_ASSERT(op.release == listed.release);
      RC_ASSERT(op.compression.name == listed.compression.name);
      RC_ASSERT(op.anchored == (op.payload == Payload::kParameter &&
                                (!listed.compression.name.empty() || plan_.outer.has_value())));
      RC_ASSERT(meant(op.merges, n) == meant(listed.merges, n));
      for (std::size_t k = 0; k < op.blocks.size(); ++k)
        RC_ASSERT(op.offsets[k] == elements_before(plan_, listed, op.blocks[k]));
      const std::vector<SlowOp> steps = slow_.steps_of(expected[i]);
      const auto place = std::ranges::find(steps, expected[i]) - steps.begin();
      RC_ASSERT(op.before == (place == 0 ? OpRef{} : from(n, steps[static_cast<std::size_t>(place) - 1])));
      RC_ASSERT(op.goes_on == (place + 1 < std::ssize(steps)));
      RC_ASSERT(op.level == plan_.links[static_cast<std::size_t>(op.link)].level);
      RC_ASSERT(op.last_apply == slow_.last_use(expected[i], n + back_ + 1) - n);
      RC_ASSERT(op.last_apply <= run_plan_.look_back);
    }
  }

  void compare_gradients(std::int64_t n) {
    const RunIteration& here = run_plan_[n];
    for (std::int32_t b = 0; b < std::ssize(plan_.blocks); ++b) {
      const auto at = static_cast<std::size_t>(b);
      const std::optional<SlowOp> carrier = slow_.sender(Payload::kGradient, b, n);
      if (carrier) {
        RC_ASSERT(here.gradient[at] == from(n, carrier));
        RC_ASSERT(here.offset[at] == elements_before(plan_, *carrier->op, b));
        RC_ASSERT(here.gradient[at].delta <= run_plan_.look_ahead);
      } else {
        RC_ASSERT(here.gradient[at].op < 0);
      }
      RC_ASSERT((here.dropped[at] != 0) == holds(iteration_at(plan_, n).dropped, b));
    }
  }

  void compare_applies(std::int64_t n) {
    const RunIteration& here = run_plan_[n];
    std::vector<std::int32_t> at_end;
    std::size_t next = 0;
    for (const Apply& listed : iteration_at(plan_, n).applies) {
      if (meant(listed.merges, n).empty()) continue;
      RC_ASSERT(next < here.applies.size());
      const auto index = static_cast<std::int32_t>(next);
      const RunApply& apply = here.applies[next++];
      RC_ASSERT(apply.at == listed.at);
      RC_ASSERT(apply.source == listed.source);
      RC_ASSERT(meant(apply.merges, n) == meant(listed.merges, n));
      const auto layer = static_cast<std::size_t>(listed.at.layer);
      const bool forward = listed.at.kind == PointKind::kForwardStart;
      const bool backward = listed.at.kind == PointKind::kBackwardEnd;
      RC_ASSERT(holds(here.at_forward[layer], index) == forward);
      RC_ASSERT(holds(here.at_backward[layer], index) == backward);
      if (!forward && !backward && listed.source == Source::kReducedGradient) at_end.push_back(index);
      compare_pieces(n, listed, apply);
      compare_reads(n, listed, apply);
    }
    RC_ASSERT(next == here.applies.size());
    RC_ASSERT(here.gradients_at_end == at_end);
  }

  void compare_reads(std::int64_t n, const Apply& listed, const RunApply& apply) {
    std::vector<SentBlock> reads;
    for (const std::int32_t b : listed.blocks) {
      const auto op = slow_.sender(Payload::kParameter, b, n);
      if (listed.source != Source::kLocalGradient || !op) continue;
      const auto at = std::ranges::find(op->op->blocks, b) - op->op->blocks.begin();
      reads.push_back({from(n, op), static_cast<std::int32_t>(at)});
    }
    std::ranges::sort(reads);
    RC_ASSERT(apply.reads == reads);
  }

  void compare_pieces(std::int64_t n, const Apply& listed, const RunApply& apply) {
    if (listed.source == Source::kLocalGradient) {
      RC_ASSERT(apply.pieces.empty());
      return;
    }
    const Payload payload =
        listed.source == Source::kAveragedParameter ? Payload::kParameter : Payload::kGradient;
    RC_ASSERT(apply.pieces.size() == listed.blocks.size());
    for (std::size_t t = 0; t < apply.tensors.size(); ++t) {
      for (auto p = apply.first_piece[t]; p < apply.first_piece[t + 1]; ++p) {
        const Piece& piece = apply.pieces[static_cast<std::size_t>(p)];
        RC_ASSERT(holds(listed.blocks, piece.block));
        RC_ASSERT(run_plan_.block_tensor[static_cast<std::size_t>(piece.block)] == apply.tensors[t]);
        if (p > apply.first_piece[t])
          RC_ASSERT(begin_of(plan_, apply.pieces[static_cast<std::size_t>(p) - 1].block) <
                    begin_of(plan_, piece.block));
        const auto expected = slow_.deliverer(payload, piece.block, meant(listed.merges, n));
        RC_ASSERT(expected.has_value());
        RC_ASSERT(piece.source == from(n, expected));
        RC_ASSERT(piece.offset == elements_before(plan_, *expected->op, piece.block));
      }
    }
  }

  const Plan& plan_;
  const RunPlan run_plan_;
  const std::int32_t back_;
  const std::int64_t end_;
  const SlowPlan slow_;
};

RC_GTEST_PROP(RunPlan, OfRandomPlansIsTheSlowLookup, ()) {
  const Workload workload = *testing::workloads({.max_layers = 4, .max_tensors = 2, .max_numel = 1000});
  const Cluster cluster = *testing::clusters({.max_links = 3});
  const Plan plan = testing::random_plan(workload, cluster);
  RC_PRE(validate(plan, workload).valid());
  RC_TAG(plan.prologue.empty() ? "period" : "prologue");
  Comparison(plan, workload).run();
}

RC_GTEST_PROP(RunPlan, OfRandomPlansOverTwoLevelsIsTheSlowLookup, ()) {
  const Workload workload = *testing::workloads({.max_layers = 4, .max_tensors = 2, .max_numel = 1000});
  const Cluster cluster = *testing::clusters({.max_links = 3, .levels = true});
  RC_PRE(cluster.workers_per_node > 1);
  const Plan plan = testing::in_steps(testing::random_plan(workload, cluster, {.prologue = false}), cluster);
  RC_PRE(validate(plan, workload).valid());
  Comparison(plan, workload).run();
}

RC_GTEST_PROP(RunPlan, OfEverySchemesPlanIsTheSlowLookup, ()) {
  const Workload workload = *testing::workloads({.max_layers = 5});
  const Cluster cluster = *testing::clusters({.max_links = 2, .levels = *rc::gen::arbitrary<bool>()});
  const SchemeInfo& scheme = schemes()[*rc::gen::inRange<std::size_t>(0, schemes().size())];
  RC_TAG(std::string(scheme.name));
  const PlanResult result = make_plan(scheme.name, workload, cluster);
  RC_PRE(std::holds_alternative<Plan>(result));
  Comparison(std::get<Plan>(result), workload).run();
}

RC_GTEST_PROP(RunPlan, OfPlansForThreeLayersIsTheSlowLookup, ()) {
  const Workload workload = testing::three_layers();
  const Cluster cluster = *testing::clusters({.max_links = 2});
  for (const SchemeInfo& scheme : schemes()) {
    RC_LOG() << scheme.name << "\n";
    const PlanResult result = make_plan(scheme.name, workload, cluster);
    if (const Plan* plan = std::get_if<Plan>(&result)) Comparison(*plan, workload).run();
  }
  for (const auto& [name, plan] : testing::all_families()) {
    RC_LOG() << name << "\n";
    Comparison(plan, workload).run();
  }
}

}  // namespace
}  // namespace gradweave
