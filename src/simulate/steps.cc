#include "simulate/steps.h"

#include <algorithm>

namespace gradweave {

StepWriter::StepWriter(const CompiledPlan& plan, std::span<const Workload> classes, const CostModel& model,
                       const SimulationOptions& options, bool fine, OpPlaces& places, Program& program)
    : plan_(plan),
      classes_(classes),
      model_(model),
      options_(options),
      fine_(fine),
      order_(static_cast<std::int32_t>(model.index().layer_count)),
      places_(places),
      program_(program),
      cuts_(program.code_count()) {}

void StepWriter::write(std::size_t code) {
  std::vector<Cut>& cuts = cuts_[code];
  std::ranges::sort(cuts, {}, &Cut::rank);
  const auto repeated = std::ranges::unique(cuts, {}, &Cut::rank);
  cuts.erase(repeated.begin(), repeated.end());

  n_ = static_cast<std::int64_t>(code);
  iteration_ = &plan_.iteration(n_);
  program_.step_begin.push_back(static_cast<std::uint32_t>(program_.steps.size()));
  open_ = false;
  next_apply_ = 0;
  time_optimizer();

  const auto layers = static_cast<std::int32_t>(model_.index().layer_count);
  for (std::int32_t l = 0; l < layers; ++l) {
    apply_at({.kind = PointKind::kForwardStart, .layer = l}, l);
    mark(order_.forward_start(l));
    compute(SpanKind::kForward, l,
            [&](const Workload& w) { return w.layers[static_cast<std::size_t>(l)].forward_ns; });
    mark(order_.forward_end(l));
  }
  mark(order_.backward_start());
  for (std::int32_t l = layers; l-- > 0;) {
    compute(SpanKind::kBackward, l,
            [&](const Workload& w) { return w.layers[static_cast<std::size_t>(l)].backward_ns; });
    mark(order_.backward_end(l));
    apply_at({.kind = PointKind::kBackwardEnd, .layer = l}, l);
  }
  apply_at({.kind = PointKind::kIterationEnd}, -1);
  mark(order_.iteration_end());
}

void StepWriter::finish() {
  program_.step_begin.push_back(static_cast<std::uint32_t>(program_.steps.size()));
  program_.durations.resize(step_durations_.size());
  for (std::size_t s = 0; s < program_.steps.size(); ++s) {
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      program_.durations[c * program_.steps.size() + s] = step_durations_[s * classes_.size() + c];
    }
  }
}

std::int32_t StepWriter::step_at(std::size_t code, PointRank rank) const {
  return std::ranges::lower_bound(cuts_[code], rank, {}, &Cut::rank)->step;
}

void StepWriter::apply_at(const Point& at, std::int32_t layer) {
  const std::int64_t point = order_.index(at);
  for (; next_apply_ < iteration_->applies.size(); ++next_apply_) {
    const auto a = static_cast<std::size_t>(iteration_->apply_by_rank[next_apply_]);
    const ResolvedApply& apply = iteration_->applies[a];
    if (apply.at != point) break;
    if (!exists(apply.merges, n_)) continue;
    const std::vector<OpPlace>& ops = places_.delivering(n_, a);
    if (!ops.empty()) wait(ops, layer);
    if (optimizer_times_[a] > 0) {
      compute(SpanKind::kOptimizer, layer, [&](const Workload&) { return optimizer_times_[a]; });
    }
    mark(order_.of_apply(at, a));
  }
}

// Spreads one optimizer step over an iteration's gradient applies: applies of all bytes take just one. Those outside of its end
// take apply_ns besides.
void StepWriter::time_optimizer() {
  optimizer_times_.assign(iteration_->applies.size(), 0);
  const std::int64_t total_bytes = model_.index().total_bytes;
  if ((options_.optimizer_ns == 0 && options_.apply_ns == 0) || total_bytes == 0) return;
  std::int64_t bytes = 0;
  Nanoseconds spent = 0;
  for (std::size_t a = 0; a < iteration_->applies.size(); ++a) {
    const ResolvedApply& apply = iteration_->applies[a];
    if (apply.apply->source == Source::kAveragedParameter || !exists(apply.merges, n_)) continue;
    for (const std::int32_t block : apply.blocks) bytes += plan_.block(block).bytes;
    const Nanoseconds until = floor_share(options_.optimizer_ns, bytes, total_bytes);
    optimizer_times_[a] = until - spent;
    if (apply.apply->at.kind != PointKind::kIterationEnd) optimizer_times_[a] += options_.apply_ns;
    spent = until;
  }
}

void StepWriter::open_step() {
  if (open_) return;
  open_ = true;
  computed_ = false;
  const auto refs = static_cast<std::uint32_t>(program_.refs.size());
  program_.steps.push_back({.wait_begin = refs, .wait_end = refs});
  step_durations_.resize(step_durations_.size() + classes_.size(), 0);
}

void StepWriter::wait(const std::vector<OpPlace>& refs, std::int32_t layer) {
  open_ = false;
  open_step();
  program_.refs.insert(program_.refs.end(), refs.begin(), refs.end());
  program_.steps.back().wait_end = static_cast<std::uint32_t>(program_.refs.size());
  program_.steps.back().wait_layer = layer;
}

template <typename Duration>
void StepWriter::compute(SpanKind kind, std::int32_t layer, const Duration& duration) {
  if (fine_ && computed_) open_ = false;
  open_step();
  computed_ = true;
  program_.steps.back().kind = kind;
  program_.steps.back().layer = layer;
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    step_durations_[step_durations_.size() - classes_.size() + c] += duration(classes_[c]);
  }
}

// Ends the step here if that was asked for.
void StepWriter::mark(PointRank rank) {
  std::vector<Cut>& cuts = cuts_[static_cast<std::size_t>(n_)];
  const auto found = std::ranges::lower_bound(cuts, rank, {}, &Cut::rank);
  if (found == cuts.end() || found->rank != rank) return;
  if (program_.steps.size() == program_.step_begin.back()) open_step();
  open_ = false;
  found->step = static_cast<std::int32_t>(program_.steps.size() - 1 - program_.step_begin.back());
}

}  // namespace gradweave
