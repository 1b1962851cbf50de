#include "testing/measures.h"

#include <algorithm>

#include "gradweave/simulate.h"

namespace gradweave::testing {

std::vector<Nanoseconds> communication_times(const Plan& plan, const CostModel& model) {
  std::vector<Nanoseconds> times;
  for (const Iteration& iteration : plan.period) {
    Nanoseconds& sum = times.emplace_back(0);
    for (const Op& op : iteration.ops) {
      std::vector<Slice> slices;
      for (const std::int32_t b : op.blocks) {
        const Block& block = plan.blocks[static_cast<std::size_t>(b)];
        slices.push_back({*model.index().find_tensor(block.tensor), block.begin, block.end});
      }
      sum += model.all_reduce(0, slices);
    }
  }
  return times;
}

IterationStatistics statistics_of(const Plan& plan, const Workload& workload, const Cluster& real,
                                  double compute, std::int64_t iterations) {
  const SimulationResult result = simulate(plan, workload, real, {.timeline_iterations = 40});
  const auto starts = [](const Span& span) { return span.kind == SpanKind::kForward; };
  const std::int64_t first = std::ranges::find_if(result.timeline.spans, starts)->iteration;
  IterationStatistics sample{.first = first + 10, .iterations = iterations, .compute_ns = {1, 1, 1, 1}};
  for (std::int64_t n = sample.first; n < sample.first + sample.iterations; ++n) {
    std::vector<double> ops(iteration_at(plan, n).ops.size());
    for (const Span& span : result.timeline.spans) {
      if (span.kind == SpanKind::kOp && span.iteration == n)
        ops[static_cast<std::size_t>(span.op)] = static_cast<double>(span.end_ns - span.begin_ns);
    }
    sample.op_ns.insert(sample.op_ns.end(), ops.begin(), ops.end());
  }
  for (const Layer& layer : workload.layers) {
    sample.forward_ns += compute * static_cast<double>(layer.forward_ns);
    sample.backward_ns.push_back(compute * static_cast<double>(layer.backward_ns));
  }
  sample.iteration_ns = result.iteration_ns();
  sample.exposed_ns = result.exposed_ns;
  return sample;
}

}  // namespace gradweave::testing
