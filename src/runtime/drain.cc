// What is on its way is applied, and nothing new is begun.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include <algorithm>

#include "gradweave/error.h"
#include "runtime/engine.h"

namespace gradweave::runtime {

// Takes out of an execution what iterations from `end` on would have given.
void Engine::cut(OpRun& run, std::int64_t end) {
  run.forced = true;
  if (run.op->collective == Collective::kAllGather) {
    run.absent = run.partner->absent;
    return;
  }
  const auto all = static_cast<std::int32_t>(run.op->merges.size());
  const auto exist = static_cast<std::int32_t>(
      std::ranges::count_if(run.op->merges, [&](std::int32_t m) { return run.iteration + m < end; }));
  if (exist == all) return;
  run.pending -= (all - exist) * static_cast<std::int32_t>(run.op->blocks.size());
  run.absent = exist == 0;
  const bool mean =
      program_->merge == Merge::kMean && run.op->payload == Payload::kGradient && !run.op->keep_own;
  if (!run.absent && mean) run.flat.mul_(static_cast<double>(all) / exist);
}

void Engine::drain(const std::string& what) {
  if (!program_) return;
  const PlainMode plain;
  check_failure();
  if (phase_ == Phase::kReduced && (*program_)[iteration_].synchronous) advance();
  if (phase_ != Phase::kIdle) {
    throw InvalidInput("a backward is not finished by optimizer.step()", "gradweave.finish",
                       "call it between iterations");
  }
  peers_->agree(what, "", options_.link.timeout);
  const std::int64_t end = iteration_;
  std::vector<at::Tensor> before;
  for (NamedParameter& parameter : parameters_) before.push_back(parameter.tensor.grad());
  draining_ = true;
  drain_end_ = end;
  release_retired();
  for (std::int64_t n = end; n <= end + program_->look_ahead; ++n) {
    const std::lock_guard lock(exchange_->mutex);
    for (OpRun& run : runs_[static_cast<std::size_t>(n) % runs_.size()]) {
      if (run.op != nullptr && run.iteration == n) cut(run, end);
    }
  }
  for (const auto& link : links_) {
    const std::lock_guard lock(exchange_->mutex);
    link->wake();
  }
  const std::int64_t last = end + program_->look_ahead + program_->look_back;
  for (;;) {
    drain_iteration(iteration_, end);
    if (iteration_ == last) break;
    retire(iteration_);
    ++iteration_;
    prepare(iteration_ + program_->look_ahead);
    {
      const std::lock_guard lock(exchange_->mutex);
      for (OpRun& run : runs_[static_cast<std::size_t>(iteration_ + program_->look_ahead) % runs_.size()]) {
        if (run.op != nullptr) cut(run, end);
      }
    }
    push_ops(iteration_);
  }
  synchronize();
  retire(iteration_);
  draining_ = false;
  for (std::size_t p = 0; p < parameters_.size(); ++p)
    parameters_[p].tensor.mutable_grad() = std::move(before[p]);
  release_retired();
  average_parameters();
  base_ += end;
  iteration_ = 0;
  reset_runs();
}

// The applies of one iteration that hold something from before `end`, in the order of their points.
void Engine::drain_iteration(std::int64_t iteration, std::int64_t end) {
  const CalendarIteration& here = (*program_)[iteration];
  const auto pending = [&](const CalendarApply& apply) {
    return apply.source != Source::kLocalGradient &&
           std::ranges::any_of(apply.merges, [&](std::int32_t m) { return iteration + m < end; });
  };
  const auto outside = [&](const std::vector<std::int32_t>& applies) {
    for (std::int32_t a : applies) {
      const CalendarApply& apply = here.applies[static_cast<std::size_t>(a)];
      if (pending(apply)) apply_outside_end(apply);
    }
  };
  for (std::size_t l = 0; l < program_->layers; ++l) {
    const auto point = static_cast<std::size_t>(PointKind::kForwardStart) * program_->layers + l;
    if (passed_[point].iteration < iteration)
      outside(here.at_forward[l]);  // synchronize() may have been first
  }
  for (std::size_t l = program_->layers; l-- > 0;) outside(here.at_backward[l]);
  std::vector<std::int32_t> stepped;
  const auto step = [&] {
    if (stepped.empty()) return;
    std::ranges::sort(stepped);
    stepped.erase(std::ranges::unique(stepped).begin(), stepped.end());
    run_optimizer(stepped);
    ++counters_.updates;
    stepped.clear();
  };
  for (NamedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  for (const CalendarApply& apply : here.applies) {
    if (apply.at.kind != PointKind::kIterationEnd || !pending(apply)) continue;
    if (apply.source == Source::kAveragedParameter) {
      step();
      apply_average(apply);
    } else {
      apply_reduced(apply);
      if (holds_overflow(apply)) continue;
      stepped.insert(stepped.end(), apply.tensors.begin(), apply.tensors.end());
    }
  }
  step();
}

// One synchronous average of what ranks stepped on their own: afterwards all ranks are equal, bit for bit.
void Engine::average_parameters() {
  if (!program_->local_steps || world_size_ == 1) return;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  for (const LinkSpec& spec : specs_) {
    if (spec.name == program_->links.front()) group = spec.group;
  }
  c10d::AllreduceOptions how;
  how.timeout = options_.link.timeout;
  for (std::size_t t = 0; t < parameter_of_.size(); ++t) {
    if (!program_->stepped_locally[t]) continue;
    at::Tensor value = flat_parameter(static_cast<std::int32_t>(t));
    at::Tensor sum = at::empty_like(value);
    at::mul_out(sum, value, scale_);
    std::vector<at::Tensor> tensors{sum};
    const auto begin = Clock::now();
    try {
      group->allreduce(tensors, how)->wait();
    } catch (const std::exception& error) {
      fail("the average of parameters that ranks stepped on their own", Clock::now() - begin, error.what());
    }
    value.copy_(sum);
  }
}

void Engine::synchronize() {
  if (!program_) return;
  if (phase_ == Phase::kIdle && !draining_) {
    for (std::size_t l = 0; l < program_->layers; ++l) {
      if (!(*program_)[iteration_].at_forward[l].empty()) apply_forward(static_cast<std::int32_t>(l));
    }
  }
  std::unique_lock lock(exchange_->mutex);
  const auto runnable = [&] {
    return std::ranges::any_of(links_, [](const auto& link) { return link->busy(); });
  };
  while (!exchange_->failed() && runnable()) exchange_->done.wait(lock);
  if (exchange_->failed()) throw RuntimeFailure(exchange_->failure);
}

}  // namespace gradweave::runtime
