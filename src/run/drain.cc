// What is on its way is applied, and nothing new is begun.
#include <algorithm>
#include <utility>

#include "gradweave/error.h"
#include "run/run.h"

namespace gradweave::run {

// Takes out of an execution what iterations from `end` on would have given.
void Run::cut(const Execution& execution, std::int64_t end) {
  const RunOp& op = *execution.op;
  if (execution.before != nullptr) return queue_->cut(execution, 0, false);
  const auto all = static_cast<std::int32_t>(op.merges.size());
  const auto left = static_cast<std::int32_t>(
      std::ranges::count_if(op.merges, [&](std::int32_t m) { return execution.iteration + m < end; }));
  const bool mean = plan().merge == Merge::kMean && op.payload == Payload::kGradient && !op.keep_own;
  if (left > 0 && left < all && mean) host_.rescale(execution, static_cast<double>(all) / left);
  if (left > 0 && left < all) host_.filled(execution);
  queue_->cut(execution, (all - left) * static_cast<std::int32_t>(op.blocks.size()), left == 0);
}

void Run::cut_row(std::int64_t iteration, std::int64_t end) {
  for (const Execution& execution : plan_->window.row(iteration)) {
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
  // Before anything is changed: the caller may repair what this refuses, and come again.
  for (std::size_t l = 0; l < plan_->forwarded.size(); ++l) {
    if (plan_->forwarded[l] < cursor_.now()) plan_->applies.check_unchanged(here().at_forward[l]);
  }
  peers_->agree(what, "", options_.queue.timeout);
  const std::int32_t ahead = plan().look_ahead;
  const std::int64_t end = cursor_.now();
  const std::vector<std::int32_t> tensors = all_tensors();
  host_.set_gradients_aside(tensors);
  cursor_.begin_drain();
  queue_->begin_drain();
  for (std::int64_t n = end; n <= end + ahead; ++n) cut_row(n, end);
  const std::int64_t last = end + ahead + plan().look_back;
  for (;;) {
    drain_iteration(end);
    if (cursor_.now() == last) break;
    retire(cursor_.now());
    cursor_.advance();
    queue_->wait_idle();  // nobody waits for what is absent, and its place in the ring is used again
    open(cursor_.now() + ahead);
    cut_row(cursor_.now() + ahead, end);
    plan_->window.push(cursor_.now());
  }
  queue_->wait_idle();
  retire(cursor_.now());
  host_.put_gradients_back(tensors);
  if (end > 0) average_over_ranks();
  restart();
}

// Whether it holds something from before `end` that is on its way.
bool Run::pending(const RunApply& apply, std::int64_t end) const {
  const std::int64_t now = cursor_.now();
  return apply.source != Source::kLocalGradient &&
         std::ranges::any_of(apply.merges, [&](std::int32_t m) { return now + m < end; });
}

// The pending applies of one iteration, in the order of their points.
void Run::drain_iteration(std::int64_t end) {
  const RunIteration& now = here();
  const std::vector<std::int64_t>& forwarded = plan_->forwarded;
  const auto outside = [&](const std::vector<std::int32_t>& applies) REQUIRES(compute_thread) {
    for (std::int32_t a : applies) {
      const RunApply& apply = now.applies[static_cast<std::size_t>(a)];
      if (pending(apply, end)) plan_->applies.outside_end(apply);
    }
  };
  for (std::size_t l = 0; l < forwarded.size(); ++l) {
    if (forwarded[l] < cursor_.now()) outside(now.at_forward[l]);  // synchronize() may have been first
  }
  for (std::size_t l = forwarded.size(); l-- > 0;) outside(now.at_backward[l]);
  drain_end_of_iteration(end);
}

void Run::drain_end_of_iteration(std::int64_t end) {
  Applies& applies = plan_->applies;
  Stepped stepped;
  const auto step_these = [&]() REQUIRES(compute_thread) {
    recorder_.begin_span();
    applies.step(applies.in_place(std::exchange(stepped, {})));
  };
  for (std::int32_t t : all_tensors()) host_.drop_gradient(t);
  for (const RunApply& apply : here().applies) {
    if (apply.at.kind != PointKind::kIterationEnd || !pending(apply, end)) continue;
    if (apply.source == Source::kAveragedParameter) {
      step_these();
      applies.average(apply);
    } else {
      applies.put_reduced(apply);
      if (!plan_->context.holds_left_out(apply)) add(apply.stepped, stepped);
    }
  }
  step_these();
}

// One synchronous average of what ranks stepped on their own: afterwards all ranks are equal, bit for bit. Nothing is
// averaged twice: the mean of equal values of three ranks is not always that value.
void Run::average_over_ranks() {
  if (!plan().local_steps || options_.world_size == 1) return;
  std::vector<std::int32_t> tensors = all_tensors();
  std::erase_if(tensors, [&](std::int32_t t) REQUIRES(compute_thread) {
    return !plan().stepped_locally[static_cast<std::size_t>(t)];
  });
  ending_.guard("the average of parameters that ranks stepped on their own",
                [&]() REQUIRES(compute_thread) { host_.average_over_ranks(tensors); });
}

void Run::synchronize() {
  if (!installed()) return;
  if (phase_ == Phase::kIdle) {
    for (std::size_t l = 0; l < plan_->forwarded.size(); ++l) {
      if (!here().at_forward[l].empty()) apply_forward(static_cast<std::int32_t>(l));
    }
  }
  queue_->wait_idle();
}

}  // namespace gradweave::run
