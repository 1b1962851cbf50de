// Gradients and parameters on their way into messages.
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "gradweave/error.h"
#include "runtime/engine.h"
#include "runtime/passes.h"

namespace gradweave::runtime {
namespace {

// Returns `tensor` as one dimension in memory order. The caller owes non-overlapping, dense memory.
at::Tensor flattened(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

}  // namespace

// The gradient in the parameter's memory order, not owned by Python.
at::Tensor Engine::flat_gradient(std::int32_t tensor) const {
  const at::Tensor& parameter = this->parameter(tensor);
  const at::Tensor& gradient = parameter.grad();
  const auto where = [&] {
    return "parameter '" + program_->index.tensor_names[static_cast<std::size_t>(tensor)] + "'";
  };
  if (!gradient.defined())
    throw InvalidInput("its gradient was removed by another hook", where(), "leave .grad alone in hooks");
  if (gradient.layout() != c10::kStrided) {
    throw InvalidInput("its gradient is sparse", where(), "use sparse=False: schedules need dense gradients");
  }
  if (gradient.scalar_type() !=
      scalar_type_of(program_->index.tensors[static_cast<std::size_t>(tensor)].dtype)) {
    throw InvalidInput("its dtype has changed since gradweave.wrap()", where(),
                       "convert the model first, then wrap it");
  }
  const at::Tensor detached = gradient.detach();
  if (detached.strides() == parameter.strides()) return flattened(detached);
  at::Tensor ordered = at::empty_strided(parameter.sizes(), parameter.strides(), detached.options());
  ordered.copy_(detached);
  return flattened(ordered);
}

at::Tensor Engine::flat_parameter(std::int32_t tensor) const { return flattened(parameter(tensor).detach()); }

// Hands a tensor's complete gradient over; an undefined one counts as zeros.
void Engine::deliver(std::int32_t tensor, const at::Tensor& gradient) {
  completed_.clear();
  for (std::int32_t b : program_->blocks_of_tensor[static_cast<std::size_t>(tensor)])
    deliver_block(b, gradient);
  if (completed_.empty()) return;
  for (OpRun* run : completed_) {
    if (run->pending == 1) run->data.record(options_.link.device);
  }
  const std::lock_guard lock(exchange_->mutex);
  for (OpRun* run : completed_) {
    if (--run->pending == 0) links_[static_cast<std::size_t>(run->op->link)]->wake();
  }
}

void Engine::deliver_block(std::int32_t block, const at::Tensor& gradient) {
  const auto b = static_cast<std::size_t>(block);
  const CalendarIteration& here = (*program_)[iteration_];
  const OpRef carrier = here.gradient[b];
  if (carrier.op < 0 && !here.dropped[b]) return;
  const Block& place = program_->blocks[b];
  at::Tensor part =
      gradient.defined() ? gradient.narrow(0, place.begin, place.end - place.begin) : at::Tensor();
  if (program_->residual.enabled) part = with_residual(block, part, carrier.op >= 0);
  if (carrier.op < 0) return;
  OpRun& run = run_at(iteration_ + carrier.delta, carrier.op);
  if (!run.op->in_place || !deliver_in_place(run, program_->block_tensor[b], gradient)) {
    write_block(run, block, here.offset[b], part);
  }
  completed_.push_back(&run);
}

// Lets the op work on the gradient itself. Not if its storage is shared: then others would see it change.
bool Engine::deliver_in_place(OpRun& run, std::int32_t tensor, const at::Tensor& gradient) {
  if (!gradient.defined()) return false;
  const at::Tensor& own = parameter(tensor).grad();
  if (own.data_ptr() != gradient.data_ptr() || own.storage().use_count() > 2) return false;
  run.flat = gradient;
  if (world_size_ > 1) run.flat.mul_(scale_);
  return true;
}

void Engine::write_block(OpRun& run, std::int32_t block, std::int64_t offset, const at::Tensor& part) {
  if (!run.flat.defined()) {
    run.flat = pool_->acquire(*run.op);
    if (run.op->keep_own) run.own = pool_->acquire(*run.op);
  }
  const auto at = static_cast<std::size_t>(std::ranges::find(run.op->blocks, block) - run.op->blocks.begin());
  const Block& place = program_->blocks[static_cast<std::size_t>(block)];
  at::Tensor to = run.flat.narrow(0, offset, place.end - place.begin);
  const bool first = !std::exchange(run.written[at], 1);
  const auto merged = static_cast<double>(run.op->merges.size());
  const bool mean = program_->merge == Merge::kMean && merged > 1 && !run.op->keep_own;
  if (!part.defined()) {
    if (first) to.zero_();
  } else if (first && !mean) {
    world_size_ > 1 ? void(at::mul_out(to, part, scale_)) : void(to.copy_(part));
  } else if (first) {
    at::mul_out(to, part, at::scalar_tensor(1.0 / (world_size_ * merged), at::kDouble));
  } else {
    to.add_(part, 1.0 / (mean ? world_size_ * merged : world_size_));
  }
  if (!run.op->keep_own) return;
  at::Tensor own = run.own.narrow(0, offset, place.end - place.begin);
  if (!part.defined()) {
    if (first) own.zero_();
  } else {
    first ? own.copy_(part) : own.add_(part);
  }
}

// Error feedback: returns gradient + coefficient * residual; what is not sent becomes the residual.
at::Tensor Engine::with_residual(std::int32_t block, const at::Tensor& part, bool sent) {
  const Residual& rule = program_->residual;
  const double coefficient = std::min(
      rule.cap,
      rule.initial + static_cast<double>(iteration_ / std::max<std::int64_t>(rule.every, 1)) * rule.step);
  at::Tensor& residual = residuals_[static_cast<std::size_t>(block)];
  at::Tensor sum = part;
  if (residual.defined()) {
    sum = part.defined() ? part.add(residual, coefficient) : residual.mul(coefficient);
  }
  if (sent) {
    residual.reset();
  } else if (sum.defined()) {
    residual = sum.is_same(part) ? part.clone() : sum;
  }
  return sum;
}

// Copies the parameters whose read point this is: after the block's local apply of this iteration.
void Engine::read_parameters(PointKind at, std::int32_t layer) {
  for (const OpRef& ref : (*program_)[iteration_].reads)
    read_parameters(run_at(iteration_ + ref.delta, ref.op), at, layer);
}

void Engine::read_parameters(OpRun& run, PointKind at, std::int32_t layer) {
  std::int32_t read = 0;
  for (std::size_t i = 0; i < run.op->blocks.size(); ++i) {
    const auto block = static_cast<std::size_t>(run.op->blocks[i]);
    const std::int32_t tensor = program_->block_tensor[block];
    if (run.written[i] || (at == PointKind::kBackwardEnd && !stepped_at_backward_end(tensor, layer)))
      continue;
    if (!run.flat.defined()) {
      run.flat = pool_->acquire(*run.op);
      if (run.op->keep_own) run.own = pool_->acquire(*run.op);
    }
    const Block& place = program_->blocks[block];
    const std::int64_t length = place.end - place.begin;
    const at::Tensor value = flat_parameter(tensor).narrow(0, place.begin, length);
    const at::Tensor message = run.flat.narrow(0, run.op->offsets[i], length);
    if (run.op->keep_own) {
      copy_twice(value, message, run.own.narrow(0, run.op->offsets[i], length));
    } else {
      message.copy_(value);
    }
    run.written[i] = 1;
    ++read;
  }
  if (read == 0) return;
  run.data.record(options_.link.device);
  const std::lock_guard lock(exchange_->mutex);
  run.pending -= read;
  if (run.pending == 0) links_[static_cast<std::size_t>(run.op->link)]->wake();
}

bool Engine::stepped_at_backward_end(std::int32_t tensor, std::int32_t layer) const {
  if (program_->index.tensors[static_cast<std::size_t>(tensor)].layer != static_cast<std::size_t>(layer))
    return false;
  const CalendarIteration& here = (*program_)[iteration_];
  return std::ranges::any_of(here.at_backward[static_cast<std::size_t>(layer)], [&](std::int32_t a) {
    const CalendarApply& apply = here.applies[static_cast<std::size_t>(a)];
    return apply.source == Source::kLocalGradient &&
           std::ranges::find(apply.tensors, tensor) != apply.tensors.end();
  });
}

// Takes buffers back whose last apply was in `iteration`. Gradients may still be views of them: see
// release_retired().
void Engine::retire(std::int64_t iteration) {
  for (std::int64_t i = std::max<std::int64_t>(0, iteration - program_->look_back); i <= iteration; ++i) {
    for (OpRun& run : runs_[static_cast<std::size_t>(i) % runs_.size()]) {
      if (run.op == nullptr || run.iteration != i || i + run.op->last_apply != iteration ||
          !run.flat.defined())
        continue;
      if (run.op->collective == Collective::kReduceScatter) continue;  // its all_gather has the buffer
      const bool pooled = !(run.op->in_place && run.written[0] == 0);
      if (pooled) retired_.push_back({run.op, std::move(run.flat)});
      if (run.own.defined()) retired_.push_back({run.op, std::move(run.own)});
      run.flat.reset();
      run.own.reset();
    }
  }
}

// At the start of a backward, after the user's zero_grad(): makes retired buffers free. A gradient that is
// still a view of one is copied away, unless the buffer is certain to get the same gradient again.
void Engine::release_retired() {
  for (Retired& retired : retired_) {
    if (retired.op->payload == Payload::kGradient && !pool_->single(*retired.op)) {
      for (std::int32_t b : retired.op->blocks) {
        at::Tensor& gradient = parameter(program_->block_tensor[static_cast<std::size_t>(b)]).mutable_grad();
        if (gradient.defined() && gradient.is_alias_of(retired.flat)) gradient = gradient.clone();
      }
    }
    pool_->release(*retired.op, std::move(retired.flat));
  }
  retired_.clear();
}

// Tells the other ranks which parameters had a gradient here. The answer is needed only where it is applied.
void Engine::exchange_used() {
  const std::size_t tensors = ready_.size();
  Used& here = used_[static_cast<std::size_t>(iteration_) % used_.size()];
  wait_for_flags(here);  // of an iteration long ago that nobody asked about
  auto* flags = here.flags.mutable_data_ptr<std::uint8_t>();
  std::uint8_t some_unused = 0;
  std::size_t unused = 0;
  for (std::size_t t = 0; t < tensors; ++t) {
    flags[t] = ready_[t] | touched_[t];
    if (!flags[t]) {
      some_unused = 1;
      unused = t;
    }
  }
  flags[tensors] = some_unused;
  flags[tensors + 1] = scaled() && found_inf_.item<float>() != 0;
  if (find_unused_ == FindUnused::kOff && some_unused) {
    throw InvalidInput("it got no gradient in this backward",
                       "parameter '" + program_->index.tensor_names[unused] + "'",
                       "pass find_unused_parameters=True to gradweave.wrap()");
  }
  here.overflow = flags[tensors + 1] != 0;
  if ((find_unused_ == FindUnused::kOff && !scaled()) || world_size_ == 1) return;
  std::vector<at::Tensor> tensors_sent{here.flags};
  c10d::AllreduceOptions how;
  how.reduceOp = c10d::ReduceOp::MAX;
  how.timeout = options_.link.timeout;
  here.work = control_->allreduce(tensors_sent, how);
  // Every apply from here on depends on the overflow, and the first iteration's answer decides on the next.
  if (find_unused_ != FindUnused::kAuto && !scaled()) return;
  wait_for_flags(here);
  here.overflow = flags[tensors + 1] != 0;
  if (find_unused_ == FindUnused::kAuto) find_unused_ = flags[tensors] ? FindUnused::kOn : FindUnused::kOff;
}

void Engine::wait_for_flags(Used& used) {
  if (!used.work) return;
  const auto begin = Clock::now();
  try {
    used.work->wait();
  } catch (const std::exception& error) {
    fail("the exchange of used parameters", Clock::now() - begin, error.what());
  }
  used.work.reset();
}

// Whether some rank had a gradient for the tensor in some iteration of the generation.
bool Engine::used(const CalendarApply& apply, std::int32_t tensor) {
  if (find_unused_ == FindUnused::kOff) return true;
  return std::ranges::any_of(apply.merges, [&](std::int32_t m) {
    if (draining_ && iteration_ + m >= drain_end_) return false;
    Used& then = used_[static_cast<std::size_t>(iteration_ + m) % used_.size()];
    wait_for_flags(then);
    return then.flags.const_data_ptr<std::uint8_t>()[tensor] != 0;
  });
}

}  // namespace gradweave::runtime
