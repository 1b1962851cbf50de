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
  const Waited wait = queue_->wait(execution);
  if (wait.waited) {
    const std::int64_t exposed = std::chrono::nanoseconds(wait.end - wait.begin).count();
    counters_.exposed_ns += exposed;
    timer_.waited(exposed);
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
    const auto tensor = static_cast<std::size_t>(apply.tensors[i]);
    if (used(apply, apply.tensors[i])) {
      put_gradient(apply, i);
    } else if (apply.merges.back() < 0 && apply.correction == Correction::kNone &&
               !tables_->calendar.sliced[tensor]) {
      // What is there is this iteration's own gradient, which another step will use.
      const auto first = static_cast<std::size_t>(tables_->calendar.blocks_of_tensor[tensor].front());
      if (put_[first] != iteration_) host_.drop_gradient(apply.tensors[i]);
    }
  }
}

// Puts the gradient of the apply's tensor number `place` in place, as far as it is reduced here; several
// generations add up.
void Run::put_gradient(const CalendarApply& apply, std::size_t place) {
  const std::int32_t tensor = apply.tensors[place];
  parts_.clear();
  for (auto p = static_cast<std::size_t>(apply.first_piece[place]);
       p < static_cast<std::size_t>(apply.first_piece[place + 1]); ++p)
    parts_.push_back(part_of(apply.pieces[p]));
  const bool local = apply.correction == Correction::kLocal && !draining_ && !spoilt(iteration_);
  // Blocks that are there already come first. Where the tensor is stepped as a whole, it is all or none.
  const auto others = std::ranges::partition(parts_, [&](const Part& part) {
    return local || put_[static_cast<std::size_t>(part.block)] == iteration_;
  });
  const auto there = static_cast<std::size_t>(others.begin() - parts_.begin());
  for (const Part& part : parts_) put_[static_cast<std::size_t>(part.block)] = iteration_;
  if (there > 0) host_.put_gradient(tensor, std::span(parts_).first(there), true);
  if (there < parts_.size()) host_.put_gradient(tensor, std::span(parts_).subspan(there), false);
}

void Run::apply_average(const CalendarApply& apply) {
  if (apply.mode == Mode::kReplace) check_parameters(apply);
  for (const Piece& piece : apply.pieces) {
    const Part part = part_of(piece);
    wait_for(*part.from, layer_of(apply));
    host_.average_parameter(part);
  }
}

void Run::step(const Stepped& stepped) {
  if (stepped.empty()) return;
  // Other blocks of their tensors may wait for an update: this change is not the caller's.
  std::vector<std::int32_t> unchanged;
  for (const std::int32_t b : stepped.blocks) {
    const std::int32_t tensor = tables_->calendar.block_tensor[static_cast<std::size_t>(b)];
    if (!host_.parameter_changed(tensor)) unchanged.push_back(tensor);
  }
  if (timeline_) span_begin_ = Clock::now();
  host_.step(stepped);
  for (const std::int32_t tensor : unchanged) host_.note_parameter(tensor);
  record(SpanKind::kOptimizer, -1);
  // An update has as many steps as the plan has parts.
  if (updated_ != iteration_) ++counters_.updates;
  updated_ = iteration_;
}

void Run::apply_outside_end(const std::vector<std::int32_t>& applies) {
  if (applies.empty()) return;
  const auto begin = Clock::now();
  for (const std::int32_t a : applies) apply_outside_end(here().applies[static_cast<std::size_t>(a)]);
  timer_.stop_clock(ns_of(Clock::now()) - ns_of(begin));
}

// An apply at forward_start or backward_end: the step of a few tensors, on their own.
void Run::apply_outside_end(const CalendarApply& apply) {
  if (apply.source == Source::kAveragedParameter) return apply_average(apply);
  if (apply.source == Source::kLocalGradient) {
    if (!holds_spoilt(apply)) step(apply.stepped);
    read_parameters(apply);
    return;
  }
  const bool noted = apply.at.kind == PointKind::kForwardStart && (!draining_ || iteration_ == drain_end_);
  if (noted) check_parameters(apply);
  host_.set_gradients_aside(apply.tensors);
  apply_reduced(apply);
  if (!holds_spoilt(apply)) step(put(apply.stepped));
  host_.put_gradients_back(apply.tensors);
  if (noted) std::ranges::for_each(apply.tensors, [&](std::int32_t t) { host_.note_parameter(t); });
  for (std::int32_t b : apply.blocks) put_[static_cast<std::size_t>(b)] = -1;
}

// What is left of `stepped` where only blocks with a reduced gradient in place are stepped: of a part of a
// tensor nothing else says that it has none.
const Stepped& Run::put(const Stepped& stepped) {
  if (stepped.blocks.empty()) return stepped;
  left_ = stepped;
  std::erase_if(left_.blocks,
                [&](std::int32_t b) { return put_[static_cast<std::size_t>(b)] != iteration_; });
  return left_;
}

// What is left of `stepped`, of this iteration's end, where only what something sound updates is stepped.
// Other tensors lose their gradients, so that the optimizer passes them over.
const Stepped& Run::sound(const Stepped& stepped) {
  const bool recent =
      last_spoilt_ >= 0 && last_spoilt_ >= iteration_ - static_cast<std::int64_t>(flags_.size());
  if (!recent && stepped.blocks.empty()) return stepped;
  const Calendar& calendar = tables_->calendar;
  std::vector<std::uint8_t> tensors(ready_.size()), blocks(put_.size());
  for (const CalendarApply& apply : here().applies) {
    if (apply.at.kind != PointKind::kIterationEnd || apply.source == Source::kAveragedParameter) continue;
    // A correction adds to the local gradient of this iteration: either may be sound alone.
    const bool local = (apply.source == Source::kLocalGradient || apply.correction == Correction::kLocal) &&
                       !spoilt(iteration_);
    const bool reduced = apply.source == Source::kReducedGradient && !holds_spoilt(apply);
    if (!local && !reduced) continue;
    for (std::int32_t tensor : apply.stepped.tensors) {
      const auto t = static_cast<std::size_t>(tensor);
      const auto first = static_cast<std::size_t>(calendar.blocks_of_tensor[t].front());
      // Where no rank used it then, what is there is this iteration's own gradient.
      tensors[t] |= local || !spoilt(iteration_) || put_[first] == iteration_;
    }
    for (std::int32_t block : apply.stepped.blocks) {
      const auto b = static_cast<std::size_t>(block);
      const auto t = static_cast<std::size_t>(calendar.block_tensor[b]);
      const bool computed = (ready_[t] || touched_[t]) && host_.kept(calendar.block_tensor[b]) != Kept::kGone;
      blocks[b] |= (reduced && put_[b] == iteration_) || (local && computed);
    }
  }
  left_ = stepped;
  bool any = false;
  for (std::int32_t t : stepped.tensors) {
    any |= tensors[static_cast<std::size_t>(t)] != 0;
    if (!tensors[static_cast<std::size_t>(t)]) host_.drop_gradient(t);
  }
  if (!any) left_.tensors.clear();
  std::erase_if(left_.blocks, [&](std::int32_t b) { return !blocks[static_cast<std::size_t>(b)]; });
  return left_;
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
