// The plan in force, and the executions of its ops that are alive.
#pragma once

#include <utility>

#include "plan/run_plan.h"
#include "run/execution.h"

namespace gradweave::run {

// Where a plan steps the optimizer.
struct StepPoints {
  bool partial = false;  // some step is of a part of the parameters, or elsewhere than at iteration_end
  bool in_backward = false, in_forward = false;
  bool synchronous = false;  // every iteration applies exactly its own gradients at its end
};
StepPoints step_points_of(const RunPlan& plan);

// Threads that are stuck after a failure keep it.
struct Tables {
  RunPlan plan;
  Ring ring;
  StepPoints steps;

  explicit Tables(RunPlan&& compiled) : plan(std::move(compiled)), ring(plan), steps(step_points_of(plan)) {}
};

}  // namespace gradweave::run
