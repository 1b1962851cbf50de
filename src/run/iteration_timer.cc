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
  rows_.assign(kMostKept, {});
  for (Row& row : rows_) {
    row.layer_forward.assign(plan.layers, 0);
    row.backward.assign(plan.layers, 0);
    row.ops.assign(widest, 0);
  }
  layer_start_.assign(plan.layers, 0);
  layer_end_.assign(plan.layers, 0);
  restart();
}

void IterationTimer::restart() {
  stopped_ = exposed_ = step_ = timed_ = 0;
  ops_from_ = ops_until_ = 0;
  forget_iteration();
}

void IterationTimer::forget_iteration() {
  forward_begin_ = backward_begin_ = exposed_ = 0;
  std::ranges::fill(layer_start_, 0);
  std::ranges::fill(layer_end_, 0);
}

// As a profile has it: what lies between two layers' gradients counts to the later of them, what follows the last to it.
void IterationTimer::backward_ended(std::int64_t now) {
  if (forward_begin_ == 0 || backward_begin_ == 0) return;
  Row& here = row(timed_);
  here.forward = backward_begin_ - forward_begin_;
  here.started = std::ranges::find(layer_start_, 0) == layer_start_.end();
  std::int64_t next = backward_begin_;
  for (std::size_t l = layer_start_.size(); l-- > 0;) {
    here.layer_forward[l] = std::max<std::int64_t>(0, next - layer_start_[l]);
    next = layer_start_[l];
  }
  std::int64_t before = backward_begin_;
  for (std::size_t l = layer_end_.size(); l-- > 0;) {
    const std::int64_t end = std::max(before, layer_end_[l]);
    here.backward[l] = end - before;
    before = end;
  }
  here.backward.front() += now - stopped_ - before;
}

void IterationTimer::iteration_ended(std::int64_t now) {
  if (forward_begin_ != 0 && backward_begin_ != 0 && step_ != 0) {
    Row& here = row(timed_++);
    here.exposed = exposed_;
    here.iteration = now - step_;
  }
  step_ = now;
  forget_iteration();
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
  const bool timed = timed_ >= iterations;
  sample.compute_ns.assign(ranks, std::numeric_limits<double>::infinity());
  double& compute = sample.compute_ns[rank];
  compute = 0;
  sample.backward_ns.assign(plan_->layers, 0);
  if (!timed || iterations == 0) return sample;
  std::vector<std::vector<double>> parts;
  for (std::int64_t n = timed_ - iterations; n < timed_; ++n) {
    parts.push_back({static_cast<double>(row(n).forward)});
    parts.back().insert(parts.back().end(), row(n).backward.begin(), row(n).backward.end());
  }
  const std::vector<double> typical = typical_row(parts);
  compute = std::accumulate(typical.begin(), typical.end(), 0.0);
  sample.forward_ns = typical[0];
  sample.backward_ns.assign(typical.begin() + 1, typical.end());
  for (std::int64_t n = timed_ - iterations; n < timed_; ++n) {
    sample.exposed_ns += static_cast<double>(row(n).exposed) / static_cast<double>(iterations);
    sample.iteration_ns += static_cast<double>(row(n).iteration) / static_cast<double>(iterations);
  }
  return sample;
}

std::optional<LayerTimes> IterationTimer::layer_times(std::int64_t iterations) const {
  if (iterations < 1 || timed_ < iterations) return std::nullopt;
  std::vector<std::vector<double>> rows;
  for (std::int64_t n = timed_ - iterations; n < timed_; ++n) {
    if (!row(n).started) return std::nullopt;
    std::vector<double>& times = rows.emplace_back(row(n).layer_forward.begin(), row(n).layer_forward.end());
    times.insert(times.end(), row(n).backward.begin(), row(n).backward.end());
  }
  const std::vector<double> typical = typical_row(rows);
  const auto middle = typical.begin() + static_cast<std::ptrdiff_t>(layer_start_.size());
  return LayerTimes{{typical.begin(), middle}, {middle, typical.end()}};
}

}  // namespace gradweave::run
