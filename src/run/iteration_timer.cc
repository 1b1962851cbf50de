#include "run/iteration_timer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/statistics.h"

namespace gradweave::run {

void IterationTimer::install(const RunPlan& plan) {
  forget_ops();
  plan_ = &plan;
  std::size_t widest = 0;
  for (const RunIteration& iteration : plan.iterations) widest = std::max(widest, iteration.ops.size());
  const std::int64_t alive = std::int64_t{plan.look_ahead} + plan.look_back + 2;  // whose ops may be running
  rows_.assign(static_cast<std::size_t>(kMostKept + behind() + alive), {.ops = std::vector<Op>(widest)});
  layers_.reset(plan.layers);
  taken_ = 0;
  restart();
}

void IterationTimer::restart() {
  forget_ops();
  ops_from_ = ops_until_ = 0;
  restarted_ = layers_.ended();
  layers_.begin_iteration();
}

void IterationTimer::forget_ops() {
  for (Row& row : rows_) forget(row);
}

void IterationTimer::forget(Row& row) {
  for (Op& op : row.ops) {
    layers_.stopwatch().forget(op.stretch.begin);
    layers_.stopwatch().forget(op.stretch.end);
    op = {};
  }
  row.iteration = -1;
}

IterationTimer::Row& IterationTimer::row(std::int64_t iteration) {
  Row& row = rows_[static_cast<std::size_t>(iteration) % rows_.size()];
  if (row.iteration != iteration) forget(row);
  row.iteration = iteration;
  return row;
}

void IterationTimer::op_ran(std::int64_t iteration, std::int32_t place, Stretch stretch) {
  row(iteration).ops[static_cast<std::size_t>(place)].stretch = stretch;
}

void IterationTimer::ops_ended(std::int64_t iteration, std::span<const std::int64_t> ns) {
  if (iteration != ops_until_) ops_from_ = iteration;
  ops_until_ = iteration + 1;
  std::vector<Op>& ops = row(iteration).ops;
  for (std::size_t place = 0; place < ns.size(); ++place) ops[place].ns = ns[place];
}

IterationStatistics IterationTimer::statistics(std::int64_t iterations, std::size_t rank, std::size_t ranks,
                                               bool wait) {
  if (iterations > kMostKept) throw std::invalid_argument("so many iterations are not kept");
  const std::int64_t until = ops_until_ - (wait ? 0 : behind());
  if (until - ops_from_ < iterations) return {};
  if (wait) layers_.await_all();
  IterationStatistics sample{.first = until - iterations, .iterations = iterations};
  const Stopwatch& stopwatch = layers_.stopwatch();
  for (std::int64_t n = sample.first; n < until; ++n) {
    const std::vector<Op>& ops = row(n).ops;
    for (std::size_t place = 0; place < (*plan_)[n].ops.size(); ++place) {
      const auto& [ns, stretch] = ops[place];
      if (wait && stretch.end != 0) stopwatch.await(stretch.end);
      const bool passed = stretch.end == 0 || stopwatch.passed(stretch.end);
      sample.whole = sample.whole && passed;
      const bool of_device = stretch.end != 0 && passed;
      sample.op_ns.push_back(
          static_cast<double>(of_device ? stopwatch.between(stretch.begin, stretch.end) : ns));
    }
  }
  const std::int64_t known = layers_.known();
  const bool timed = known - restarted_ >= iterations;
  sample.compute_ns.assign(ranks, std::numeric_limits<double>::infinity());
  double& compute = sample.compute_ns[rank];
  compute = 0;
  sample.backward_ns.assign(plan_->layers, 0);
  sample.whole = sample.whole && (timed || !stopwatch.of_device());
  if (!timed || iterations == 0) return sample;
  std::vector<std::vector<double>> parts;
  for (std::int64_t n = known - iterations; n < known; ++n) {
    const LayerTimer::Row& compute_of = layers_.row(n);
    parts.push_back({static_cast<double>(compute_of.forward)});
    parts.back().insert(parts.back().end(), compute_of.backward.begin(), compute_of.backward.end());
  }
  const std::vector<double> typical = typical_row(parts);
  compute = std::accumulate(typical.begin(), typical.end(), 0.0);
  sample.forward_ns = typical[0];
  sample.backward_ns.assign(typical.begin() + 1, typical.end());
  std::vector<double> before;
  for (std::int64_t n = known - iterations; n < known; ++n) {
    const LayerTimer::Row& row = layers_.row(n);
    before.push_back(static_cast<double>(row.before));
    sample.exposed_ns += static_cast<double>(row.exposed) / static_cast<double>(iterations);
    sample.iteration_ns += static_cast<double>(row.iteration - row.before) / static_cast<double>(iterations);
  }
  sample.iteration_ns += median_of(std::move(before));
  return sample;
}

std::vector<double> IterationTimer::iteration_ns(std::int64_t most) {
  layers_.await_all();
  return iterations_from(std::max(restarted_, layers_.known() - most));
}

std::vector<double> IterationTimer::take_iteration_ns(bool wait) {
  if (wait) layers_.await_all();
  const std::int64_t first = std::max(taken_, layers_.known() - kMostKept);
  taken_ = layers_.known();
  return iterations_from(first);
}

std::vector<double> IterationTimer::iterations_from(std::int64_t first) const {
  std::vector<double> times;
  for (std::int64_t n = first; n < layers_.known(); ++n)
    times.push_back(static_cast<double>(layers_.row(n).iteration));
  return times;
}

}  // namespace gradweave::run
