#include "run/iteration_timer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "base/statistics.h"

namespace gradweave::run {

void IterationTimer::install(const RunPlan& plan) {
  plan_ = &plan;
  std::size_t widest = 0;
  for (const RunIteration& iteration : plan.iterations) widest = std::max(widest, iteration.ops.size());
  rows_.assign(kMostKept, {.ops = std::vector<std::int64_t>(widest)});
  layers_.reset(plan.layers);
  restart();
}

void IterationTimer::restart() {
  exposed_ = 0;
  ops_from_ = ops_until_ = 0;
  restarted_ = layers_.kept();
  layers_.begin_iteration();
}

void IterationTimer::iteration_ended() {
  if (layers_.iteration_ended()) row(layers_.kept() - 1).exposed = exposed_;
  exposed_ = 0;
}

void IterationTimer::ops_ended(std::int64_t iteration, std::span<const std::int64_t> ns) {
  if (iteration != ops_until_) ops_from_ = iteration;
  ops_until_ = iteration + 1;
  std::ranges::copy(ns, row(iteration).ops.begin());
}

IterationStatistics IterationTimer::statistics(std::int64_t iterations, std::size_t rank,
                                               std::size_t ranks) const {
  if (iterations > kMostKept) throw std::invalid_argument("so many iterations are not kept");
  if (ops_until_ - ops_from_ < iterations) return {};
  IterationStatistics sample{.first = ops_until_ - iterations, .iterations = iterations};
  for (std::int64_t n = sample.first; n < ops_until_; ++n) {
    const std::vector<std::int64_t>& ops = row(n).ops;
    sample.op_ns.insert(sample.op_ns.end(), ops.begin(),
                        ops.begin() + static_cast<std::ptrdiff_t>((*plan_)[n].ops.size()));
  }
  const std::int64_t kept = layers_.kept();
  const bool timed = kept - restarted_ >= iterations;
  sample.compute_ns.assign(ranks, std::numeric_limits<double>::infinity());
  double& compute = sample.compute_ns[rank];
  compute = 0;
  sample.backward_ns.assign(plan_->layers, 0);
  if (!timed || iterations == 0) return sample;
  std::vector<std::vector<double>> parts;
  for (std::int64_t n = kept - iterations; n < kept; ++n) {
    const LayerTimer::Row& compute_of = layers_.row(n);
    parts.push_back({static_cast<double>(compute_of.forward)});
    parts.back().insert(parts.back().end(), compute_of.backward.begin(), compute_of.backward.end());
  }
  const std::vector<double> typical = typical_row(parts);
  compute = std::accumulate(typical.begin(), typical.end(), 0.0);
  sample.forward_ns = typical[0];
  sample.backward_ns.assign(typical.begin() + 1, typical.end());
  for (std::int64_t n = kept - iterations; n < kept; ++n) {
    sample.exposed_ns += static_cast<double>(row(n).exposed) / static_cast<double>(iterations);
    sample.iteration_ns += static_cast<double>(layers_.row(n).iteration) / static_cast<double>(iterations);
  }
  return sample;
}

}  // namespace gradweave::run
