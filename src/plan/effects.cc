#include "gradweave/effects.h"

#include <algorithm>
#include <set>

#include "gradweave/compression.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"
#include "plan/resolved.h"

namespace gradweave {
namespace {

// A result is on time if no forward of its layer lies between its computation and its use.
bool on_time(const Apply& apply) {
  const std::int32_t expected = apply.at.kind == PointKind::kForwardStart ? -1 : 0;
  return apply.merges.size() == 1 && apply.merges.front() == expected;
}

bool runs_optimizer(const Apply& apply) {
  return apply.source == Source::kReducedGradient || apply.source == Source::kLocalGradient;
}

// Whether some step at iteration_end is of a part of the parameters. Applies that run the optimizer, one after
// another in the list, are one step of it.
bool steps_a_part(const Plan& plan, std::int64_t iteration) {
  std::set<std::int32_t> stepped;
  const auto part = [&] { return !stepped.empty() && stepped.size() < plan.blocks.size(); };
  for (const Apply& apply : iteration_at(plan, iteration).applies) {
    if (apply.at.kind != PointKind::kIterationEnd || apply.blocks.empty() || !exists(apply.merges, iteration))
      continue;
    if (runs_optimizer(apply)) {
      stepped.insert(apply.blocks.begin(), apply.blocks.end());
    } else {
      if (part()) return true;
      stepped.clear();
    }
  }
  return part();
}

}  // namespace

bool filters_gradients(const Plan& plan) {
  const auto drops = [](const Iteration& iteration) { return !iteration.dropped.empty(); };
  return plan.residual.enabled || std::ranges::any_of(plan.prologue, drops) ||
         std::ranges::any_of(plan.period, drops);
}

bool averages_gains(const Plan& plan) {
  const auto gains = [&](const Op& op) {
    return op.payload == Payload::kParameter && (plan.outer || !op.compression.name.empty());
  };
  const auto any = [&](const Iteration& iteration) { return std::ranges::any_of(iteration.ops, gains); };
  return std::ranges::any_of(plan.prologue, any) || std::ranges::any_of(plan.period, any);
}

std::vector<Effect> effects_of(const Plan& plan) {
  bool delayed = false, local = false, compressed = filters_gradients(plan), corrected = false;
  for (const std::vector<Iteration>* iterations : {&plan.prologue, &plan.period}) {
    for (const Iteration& iteration : *iterations) {
      for (const Op& op : iteration.ops) compressed |= !op.compression.name.empty();
      for (const Apply& apply : iteration.applies) {
        if (apply.source == Source::kReducedGradient) {
          (apply.correction == Correction::kLocal ? corrected : delayed) |= !on_time(apply);
        } else if (apply.source == Source::kAveragedParameter) {
          // What lands before the next step corrects nothing.
          (apply.mode == Mode::kCorrect && !on_time(apply) ? corrected : local) = true;
        }
      }
    }
  }
  std::vector<Effect> effects;
  if (delayed) effects.push_back(Effect::kDelayed);
  if (compressed) effects.push_back(Effect::kCompressed);
  if (local) effects.push_back(Effect::kLocal);
  if (corrected) effects.push_back(Effect::kCorrected);
  if (effects.empty()) effects.push_back(Effect::kExact);
  return effects;
}

Demands demands_of(const Plan& plan) {
  Demands demands{.keeps_residual = plan.residual.enabled};
  std::int32_t reach = 0;
  for (const std::vector<Iteration>* iterations : {&plan.prologue, &plan.period}) {
    for (const Iteration& iteration : *iterations) {
      for (const Op& op : iteration.ops) {
        if (op.payload != Payload::kGradient || op.compression.name.empty()) continue;
        demands.keeps_residual |= find_compressor(op.compression.name).error_feedback;
        demands.makes_momentum |= sends_momentum(op.compression);
      }
      for (const Apply& apply : iteration.applies) {
        if (apply.merges.empty()) continue;
        reach = std::max(reach, -apply.merges.front());
        const bool outside_end = runs_optimizer(apply) && apply.at.kind != PointKind::kIterationEnd;
        demands.steps_in_forward |= outside_end && apply.at.kind == PointKind::kForwardStart;
        demands.steps_in_backward |= outside_end && apply.at.kind == PointKind::kBackwardEnd;
        demands.delays_gradients |= apply.source == Source::kReducedGradient && !on_time(apply);
        demands.slices |= runs_optimizer(apply) && apply.slices;
        demands.local_steps |=
            apply.source == Source::kLocalGradient || apply.correction == Correction::kLocal;
      }
    }
  }
  demands.partial_steps = demands.steps_in_forward || demands.steps_in_backward;
  // Once around after the start, when every iteration that is named exists.
  const auto once = static_cast<std::int64_t>(plan.prologue.size() + plan.period.size());
  for (std::int64_t n = 0; n < once + reach && !demands.partial_steps; ++n)
    demands.partial_steps = steps_a_part(plan, n);
  return demands;
}

std::vector<std::int32_t> cut_layers(const Plan& plan, const Workload& workload) {
  const WorkloadIndex index(workload);
  const ResolvedPlan resolved = resolve(plan, index, nullptr);
  std::set<std::int32_t> cuts;
  for (const ResolvedIteration& iteration : resolved.slots) {
    for (const ResolvedOp& op : iteration.ops) {
      if (op.gathers()) continue;
      // A release in a later iteration, or at the end of this one, leaves nothing to start in the backward.
      const Point& release = op.op->release.point;
      const std::int32_t data = op.merges.back();
      if (release.iteration > data) continue;
      std::int32_t layer = op.first_layer;
      if (release.iteration == data && release.kind == PointKind::kIterationEnd) continue;
      if (release.iteration == data && release.kind == PointKind::kBackwardEnd)
        layer = std::min(layer, release.layer);
      if (layer > 0) cuts.insert(layer);
    }
  }
  return {cuts.begin(), cuts.end()};
}

}  // namespace gradweave
