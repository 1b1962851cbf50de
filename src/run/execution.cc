#include "run/execution.h"

#include <algorithm>

namespace gradweave::run {

Ring::Ring(const RunPlan& plan) {
  for (const RunIteration& iteration : plan.iterations) widest_ = std::max(widest_, iteration.ops.size());
  const std::int64_t depth = std::int64_t{plan.look_ahead} + plan.look_back + 2;
  rows_.resize(static_cast<std::size_t>(depth));
  std::size_t slot = 0;
  for (auto& row : rows_) {
    row.resize(widest_);
    for (Execution& execution : row) execution.slot = slot++;
  }
}

void Ring::open(const RunPlan& plan, std::int64_t iteration, std::int64_t run_iteration) {
  const RunIteration& listed = plan[iteration];
  const std::span<Execution> here = row(iteration);
  for (std::size_t i = 0; i < here.size(); ++i) {
    Execution& execution = here[i];
    execution.op = i < listed.ops.size() ? &listed.ops[i] : nullptr;
    if (execution.op == nullptr) continue;
    execution.iteration = iteration;
    execution.run_iteration = run_iteration;
    execution.place = static_cast<std::int32_t>(i);
    execution.written.assign(execution.op->blocks.size(), 0);
    const OpRef before = execution.op->before;
    execution.before = before.op < 0 ? nullptr : &at(iteration + before.delta, before.op);
  }
}

void Ring::clear() {
  for (auto& row : rows_) {
    for (Execution& execution : row) execution.op = nullptr;
  }
}

}  // namespace gradweave::run
