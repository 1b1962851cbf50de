// Results are waited for and used.
#include <algorithm>

#include "gradweave/error.h"
#include "run/run.h"

namespace gradweave::run {
namespace {

std::int32_t layer_of(const CalendarApply& apply) {
  return apply.at.kind == PointKind::kIterationEnd ? -1 : apply.at.layer;
}

}  // namespace

void Run::wait_for(const Execution& execution, std::int32_t layer) {
  const Waited wait = board_->wait(execution);
  if (wait.waited) {
    counters_.exposed_ns += std::chrono::nanoseconds(wait.end - wait.begin).count();
    ++counters_.waits;
    if (timeline_) {
      spans_.push_back({.kind = SpanKind::kWait,
                        .iteration = base_ + iteration_,
                        .layer = layer,
                        .op = execution.place,
                        .op_link = execution.op->link,
                        .begin_ns = ns_of(wait.begin),
                        .end_ns = ns_of(wait.end),
                        .label = "wait",
                        .reason = describe(tables_->calendar, execution)});
      span_begin_ = wait.end;
    }
  }
  host_.landed(execution);
}

void Run::apply_reduced(const CalendarApply& apply) {
  for (std::size_t i = 0; i < apply.tensors.size(); ++i) {
    for (auto p = static_cast<std::size_t>(apply.first_piece[i]);
         p < static_cast<std::size_t>(apply.first_piece[i + 1]); ++p) {
      wait_for(*part_of(apply.pieces[p]).from, layer_of(apply));
    }
    if (holds_spoilt(apply)) continue;
    if (used(apply, apply.tensors[i])) {
      put_gradient(apply, i);
    } else if (apply.merges.back() < 0 && apply.correction == Correction::kNone) {
      // What is there is this iteration's own gradient, which another step will use.
      if (put_[static_cast<std::size_t>(apply.tensors[i])] != iteration_)
        host_.drop_gradient(apply.tensors[i]);
    }
  }
}

// Puts the reduced gradient of the apply's tensor number `place` in place; several generations add up.
void Run::put_gradient(const CalendarApply& apply, std::size_t place) {
  const std::int32_t tensor = apply.tensors[place];
  parts_.clear();
  for (auto p = static_cast<std::size_t>(apply.first_piece[place]);
       p < static_cast<std::size_t>(apply.first_piece[place + 1]); ++p)
    parts_.push_back(part_of(apply.pieces[p]));
  const bool local = apply.correction == Correction::kLocal && !draining_ && !spoilt(iteration_);
  std::int64_t& put = put_[static_cast<std::size_t>(tensor)];
  const bool add = local || put == iteration_;
  put = iteration_;
  host_.put_gradient(tensor, parts_, add);
}

void Run::apply_average(const CalendarApply& apply) {
  if (apply.mode == Mode::kReplace) check_parameters(apply);
  for (const Piece& piece : apply.pieces) {
    const Part part = part_of(piece);
    wait_for(*part.from, layer_of(apply));
    host_.average_parameter(part);
  }
}

void Run::step(const std::vector<std::int32_t>& tensors) {
  if (tensors.empty()) return;
  if (timeline_) span_begin_ = Clock::now();
  host_.step(tensors);
  record(SpanKind::kOptimizer, -1);
  // An update has as many steps as the plan has parts.
  if (updated_ != iteration_) ++counters_.updates;
  updated_ = iteration_;
}

// An apply at forward_start or backward_end: the step of a few tensors, on their own.
void Run::apply_outside_end(const CalendarApply& apply) {
  if (apply.source == Source::kAveragedParameter) return apply_average(apply);
  if (apply.source == Source::kLocalGradient) {
    if (!holds_spoilt(apply)) step(apply.tensors);
    return;
  }
  if (apply.at.kind == PointKind::kForwardStart && (!draining_ || iteration_ == drain_end_))
    check_parameters(apply);
  host_.set_gradients_aside(apply.tensors);
  apply_reduced(apply);
  if (!holds_spoilt(apply)) step(apply.tensors);
  host_.put_gradients_back(apply.tensors);
}

// Takes away the gradients of those `tensors` that nothing sound updates in this iteration, so that the
// optimizer passes them over. Returns whether any is left.
bool Run::drop_spoilt(const std::vector<std::int32_t>& tensors) {
  if (last_spoilt_ < 0 || last_spoilt_ < iteration_ - static_cast<std::int64_t>(flags_.size())) return true;
  std::vector<std::uint8_t> sound(ready_.size());
  for (const CalendarApply& apply : here().applies) {
    if (apply.at.kind != PointKind::kIterationEnd || apply.source == Source::kAveragedParameter) continue;
    // A correction adds to the local gradient of this iteration: either may be sound alone.
    const bool local = apply.source == Source::kLocalGradient || apply.correction == Correction::kLocal;
    const bool reduced = apply.source == Source::kReducedGradient;
    if (!(reduced && !holds_spoilt(apply)) && !(local && !spoilt(iteration_))) continue;
    for (std::int32_t t : apply.tensors) sound[static_cast<std::size_t>(t)] = 1;
  }
  bool any = false;
  for (std::int32_t t : tensors) {
    if (sound[static_cast<std::size_t>(t)]) {
      any = true;
    } else {
      host_.drop_gradient(t);
    }
  }
  return any;
}

// Gives messages back whose last apply was in `iteration`.
void Run::retire(std::int64_t iteration) {
  const std::int64_t first = std::max<std::int64_t>(0, iteration - tables_->calendar.look_back);
  for (std::int64_t i = first; i <= iteration; ++i) {
    for (const Execution& execution : tables_->ring.row(i)) {
      if (execution.op == nullptr || execution.iteration != i || i + execution.op->last_apply != iteration)
        continue;
      // A reduce_scatter's message goes over to its all_gather.
      if (execution.op->collective != Collective::kReduceScatter) host_.retire(execution);
    }
  }
}

}  // namespace gradweave::run
