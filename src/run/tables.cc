#include "run/tables.h"

#include <algorithm>

namespace gradweave::run {

StepPoints step_points_of(const RunPlan& plan) {
  StepPoints points;
  for (const RunIteration& iteration : plan.iterations) {
    for (const EndAction& action : iteration.end_actions)
      points.partial |= action.optimizer && action.stepped.tensors.size() != plan.index.tensors.size();
    for (const RunApply& apply : iteration.applies) {
      if (apply.at.kind == PointKind::kIterationEnd || apply.source == Source::kAveragedParameter) continue;
      points.partial = true;
      (apply.at.kind == PointKind::kForwardStart ? points.in_forward : points.in_backward) = true;
    }
  }
  points.synchronous = std::ranges::all_of(plan.iterations, &RunIteration::synchronous);
  return points;
}

}  // namespace gradweave::run
