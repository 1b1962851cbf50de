// What is on its way is applied, and nothing new is begun.
#include <algorithm>
#include <utility>

#include "gradweave/error.h"
#include "run/run.h"

namespace gradweave::run {

// Takes out of an execution what iterations from `end` on would have given.
void Run::cut(const Execution& execution, std::int64_t end) {
  const CalendarOp& op = *execution.op;
  if (execution.partner != nullptr) return queue_->cut(execution, 0, false);
  const auto all = static_cast<std::int32_t>(op.merges.size());
  const auto left = static_cast<std::int32_t>(
      std::ranges::count_if(op.merges, [&](std::int32_t m) { return execution.iteration + m < end; }));
  const bool mean =
      tables_->calendar.merge == Merge::kMean && op.payload == Payload::kGradient && !op.keep_own;
  if (left > 0 && left < all && mean) host_.rescale(execution, static_cast<double>(all) / left);
  if (left > 0 && left < all) host_.filled(execution);
  queue_->cut(execution, (all - left) * static_cast<std::int32_t>(op.blocks.size()), left == 0);
}

void Run::cut_row(std::int64_t iteration, std::int64_t end) {
  for (const Execution& execution : tables_->ring.row(iteration)) {
    if (execution.op != nullptr && execution.iteration == iteration) cut(execution, end);
  }
}

// After a batch that was dropped, or one whose step was left out as a GradScaler does.
void Run::end_left_iteration() {
  if (taken_away()) skip();
  if (phase_ == Phase::kReduced && here().synchronous) advance();
}

void Run::drain(const std::string& what) {
  if (!installed()) return;
  queue_->check_failure();
  end_left_iteration();
  if (phase_ != Phase::kIdle) {
    throw InvalidInput("a backward is not finished by optimizer.step()", "gradweave.finish",
                       "call it between iterations");
  }
  peers_->agree(what, "", options_.queue.timeout);
  const Calendar& calendar = tables_->calendar;
  const std::int64_t end = iteration_;
  host_.set_gradients_aside(all_tensors_);
  draining_ = true;
  drain_end_ = end;
  for (std::int64_t n = end; n <= end + calendar.look_ahead; ++n) cut_row(n, end);
  const std::int64_t last = end + calendar.look_ahead + calendar.look_back;
  for (;;) {
    drain_iteration(end);
    if (iteration_ == last) break;
    retire(iteration_);
    ++iteration_;
    queue_->wait_idle();  // nobody waits for what is absent, and its place in the ring is used again
    prepare(iteration_ + calendar.look_ahead);
    cut_row(iteration_ + calendar.look_ahead, end);
    push(iteration_);
  }
  queue_->wait_idle();
  retire(iteration_);
  draining_ = false;
  host_.put_gradients_back(all_tensors_);
  if (end > 0) average_over_ranks();
  base_ += end;
  restart();
}

// The applies of one iteration that hold something from before `end`, in the order of their points.
void Run::drain_iteration(std::int64_t end) {
  const CalendarIteration& now = here();
  const auto pending = [&](const CalendarApply& apply) {
    return apply.source != Source::kLocalGradient &&
           std::ranges::any_of(apply.merges, [&](std::int32_t m) { return iteration_ + m < end; });
  };
  const auto outside = [&](const std::vector<std::int32_t>& applies) {
    for (std::int32_t a : applies) {
      const CalendarApply& apply = now.applies[static_cast<std::size_t>(a)];
      if (pending(apply)) apply_outside_end(apply);
    }
  };
  for (std::size_t l = 0; l < forwarded_.size(); ++l) {
    if (forwarded_[l] < iteration_) outside(now.at_forward[l]);  // synchronize() may have been first
  }
  for (std::size_t l = forwarded_.size(); l-- > 0;) outside(now.at_backward[l]);
  drain_end_of_iteration(pending);
}

void Run::drain_end_of_iteration(const std::function<bool(const CalendarApply&)>& pending) {
  Stepped stepped;
  const auto step_these = [&] { step(put(std::exchange(stepped, {}))); };
  for (std::int32_t t : all_tensors_) host_.drop_gradient(t);
  for (const CalendarApply& apply : here().applies) {
    if (apply.at.kind != PointKind::kIterationEnd || !pending(apply)) continue;
    if (apply.source == Source::kAveragedParameter) {
      step_these();
      apply_average(apply);
    } else {
      apply_reduced(apply);
      if (!holds_spoilt(apply)) add(apply.stepped, stepped);
    }
  }
  step_these();
}

// One synchronous average of what ranks stepped on their own: afterwards all ranks are equal, bit for bit. Nothing is
// averaged twice: the mean of equal values of three ranks is not always that value.
void Run::average_over_ranks() {
  const Calendar& calendar = tables_->calendar;
  if (!calendar.local_steps || options_.world_size == 1) return;
  std::vector<std::int32_t> tensors;
  for (std::int32_t t : all_tensors_) {
    if (calendar.stepped_locally[static_cast<std::size_t>(t)]) tensors.push_back(t);
  }
  const auto begin = Clock::now();
  try {
    host_.average_over_ranks(tensors);
  } catch (const std::exception& error) {
    fail("the average of parameters that ranks stepped on their own", Clock::now() - begin, error.what());
  }
}

void Run::synchronize() {
  if (!installed()) return;
  if (phase_ == Phase::kIdle) {
    for (std::size_t l = 0; l < forwarded_.size(); ++l) {
      if (!here().at_forward[l].empty()) apply_forward(static_cast<std::int32_t>(l));
    }
  }
  queue_->wait_idle();
}

}  // namespace gradweave::run
