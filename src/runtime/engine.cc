#include "runtime/engine.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>

#include "gradweave/error.h"
#include "runtime/passes.h"

namespace gradweave::runtime {
namespace {

std::int64_t ns_of(Clock::time_point time) { return time.time_since_epoch() / std::chrono::nanoseconds(1); }

}  // namespace

void Engine::check_failure() const {
  const std::lock_guard lock(exchange_->mutex);
  if (exchange_->failed()) throw RuntimeFailure(exchange_->failure);
}

std::string Engine::describe(const OpRun& run) const {
  return "op '" + run.op->label + "' (iteration " + std::to_string(base_ + run.iteration) + ", link " +
         program_->links[static_cast<std::size_t>(run.op->link)] + ")";
}

std::optional<Clock::time_point> Engine::released_at(const OpRun& run) const {
  const Point& point = run.op->release.point;
  const std::int64_t want = run.iteration + point.iteration;
  if (want < 0) return Clock::time_point{};
  const Passed& passed = passed_[static_cast<std::size_t>(point.kind) * program_->layers +
                                 static_cast<std::size_t>(point.layer)];
  if (passed.iteration < want) return std::nullopt;
  if (passed.iteration > want) return Clock::time_point{};
  return passed.at + std::chrono::nanoseconds(run.op->release.delay_ns);
}

void Engine::pass(PointKind kind, std::int32_t layer) {
  const std::lock_guard lock(exchange_->mutex);
  passed_[static_cast<std::size_t>(kind) * program_->layers + static_cast<std::size_t>(layer)] = {
      iteration_, Clock::now()};
  exchange_->passed_at = Clock::now();
  for (const auto& link : links_) link->wake();
}

void Engine::wait_for(OpRun& run, std::int32_t layer) {
  std::unique_lock lock(exchange_->mutex);
  if (!run.done && !exchange_->failed()) {
    const auto begin = Clock::now();
    links_[static_cast<std::size_t>(run.op->link)]->force_up_to(&run);
    if (run.partner != nullptr && !run.partner->done) {
      links_[static_cast<std::size_t>(run.partner->op->link)]->force_up_to(run.partner);
    }
    // Every op ends within its timeout, so a link without progress for longer waits for data that never
    // comes.
    const auto patience = options_.link.timeout + std::chrono::seconds(10);
    std::int64_t progress = *progress_;
    while (!run.done && !exchange_->failed()) {
      if (exchange_->done.wait_for(lock, patience) == std::cv_status::timeout && progress == *progress_) {
        exchange_->failure =
            describe(run) + " was never started: its data or an op before it on the link is missing";
      }
      progress = *progress_;
    }
    const auto end = Clock::now();
    counters_.exposed_ns += std::chrono::nanoseconds(end - begin).count();
    ++counters_.waits;
    if (options_.link.timeline) {
      spans_.push_back({.kind = SpanKind::kWait,
                        .iteration = base_ + iteration_,
                        .layer = layer,
                        .op = run.place,
                        .op_link = run.op->link,
                        .begin_ns = ns_of(begin),
                        .end_ns = ns_of(end),
                        .label = "wait",
                        .reason = describe(run)});
      span_begin_ = end;
    }
  }
  if (exchange_->failed()) throw RuntimeFailure(exchange_->failure);
  lock.unlock();
  run.result.wait(options_.link.device);
}

// ---- backward

void Engine::backward_start() {
  if (!program_ || !communicating_) return;
  // The callback belongs to the backward that is running: a nested one, as in checkpointing, would end too
  // early.
  const int task = torch::autograd::get_current_graph_task_id();
  if (armed_ && phase_ == Phase::kBackward && task != armed_task_) {
    throw InvalidInput("the backward before this one ended in an error",
                       "iteration " + std::to_string(base_ + iteration_),
                       "what it had handed over can't be taken back: restart from the last checkpoint");
  }
  armed_ = true;
  armed_task_ = task;
  torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_backward(); });
  if (phase_ != Phase::kBackward) pass(PointKind::kBackwardStart, 0);
}

void Engine::on_gradient(std::int32_t parameter) {
  if (!program_) {
    check_failure();
    if (!communicating_) return;
    throw InvalidInput("its gradient came before a plan was in force",
                       "parameter '" + parameters_[static_cast<std::size_t>(parameter)].name + "'",
                       "call the model itself, model(...), not one of its methods or parts");
  }
  const std::int32_t tensor = tensor_of_[static_cast<std::size_t>(parameter)];
  const auto t = static_cast<std::size_t>(tensor);
  ready_ns_[static_cast<std::size_t>(parameter)] = ns_of(Clock::now());
  if (!communicating_) {
    touched_[t] = 1;
    return;
  }
  enter_backward();
  if (ready_[t]) {
    throw InvalidInput(
        "its gradient was computed twice in one iteration",
        "parameter '" + parameters_[static_cast<std::size_t>(parameter)].name + "'",
        "put all backward passes but the last of an iteration under model.no_sync(); checkpoint "
        "with use_reentrant=False");
  }
  ready_[t] = 1;
  const at::Tensor& gradient = this->parameter(tensor).grad();
  unscale(gradient);
  const at::Tensor flat = flat_gradient(tensor);
  handed_[t] = {gradient.const_data_ptr(), gradient._version()};
  deliver(tensor, flat);
  complete_layer_of(tensor);
}

void Engine::enter_backward() {
  if (phase_ == Phase::kBackward) return;
  check_failure();
  if (phase_ == Phase::kReduced) {
    // A step that was skipped, as GradScaler does, or gradients that accumulate: as in
    // DistributedDataParallel.
    if (!(*program_)[iteration_].synchronous) {
      throw InvalidInput(
          "a second backward() before optimizer.step()", "iteration " + std::to_string(base_ + iteration_),
          "put all backward passes but the last of an iteration under model.no_sync(), and call "
          "step() of the optimizer that gradweave.wrap() was given");
    }
    advance();
  }
  if (const std::int32_t lost = hooks_->lost(); lost >= 0) {
    throw InvalidInput("another library has replaced the hook on its gradient",
                       "parameter '" + parameters_[static_cast<std::size_t>(lost)].name + "'",
                       "register that hook before gradweave.wrap()");
  }
  phase_ = Phase::kBackward;
  peers_->training(base_ + iteration_);
  if (!armed_) torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_backward(); });
  std::ranges::fill(ready_, 0);
  for (std::size_t l = 0; l < program_->layers; ++l) {
    missing_[l] =
        static_cast<std::int32_t>(program_->index.first_tensor[l + 1] - program_->index.first_tensor[l]);
  }
  release_retired();
  begin_unscaling();
  if (options_.link.timeline) span_begin_ = Clock::now();
}

void Engine::complete_layer_of(std::int32_t tensor) {
  const std::size_t layer = program_->index.tensors[static_cast<std::size_t>(tensor)].layer;
  if (--missing_[layer] > 0) return;
  const auto l = static_cast<std::int32_t>(layer);
  if (options_.link.timeline) {
    const auto now = Clock::now();
    spans_.push_back({.kind = SpanKind::kBackward,
                      .iteration = base_ + iteration_,
                      .layer = l,
                      .begin_ns = ns_of(span_begin_),
                      .end_ns = ns_of(now)});
    span_begin_ = now;
  }
  const CalendarIteration& here = (*program_)[iteration_];
  for (std::int32_t a : here.at_backward[layer]) apply_outside_end(here.applies[static_cast<std::size_t>(a)]);
  read_parameters(PointKind::kBackwardEnd, l);
  pass(PointKind::kBackwardEnd, l);
  // Layers without tensors end with the layer whose backward follows theirs.
  for (std::size_t next = layer + 1; next < program_->layers && program_->index.first_tensor[next] ==
                                                                    program_->index.first_tensor[next + 1];
       ++next) {
    pass(PointKind::kBackwardEnd, static_cast<std::int32_t>(next));
  }
}

void Engine::finish_backward() {
  armed_ = false;
  if (phase_ != Phase::kBackward) return;
  const auto tensors = static_cast<std::int32_t>(program_->index.tensors.size());
  for (std::int32_t t = 0; t < tensors; ++t) {
    if (ready_[static_cast<std::size_t>(t)]) continue;
    if (touched_[static_cast<std::size_t>(t)]) unscale(parameter(t).grad());
    deliver(t, touched_[static_cast<std::size_t>(t)] ? flat_gradient(t) : at::Tensor());
    complete_layer_of(t);
  }
  backward_end_ns_ = ns_of(Clock::now());
  exchange_used();
  end_unscaling();
  for (std::size_t l = program_->layers; l-- > 0;) {
    if (program_->index.first_tensor[l] == program_->index.first_tensor[l + 1]) {
      pass(PointKind::kBackwardEnd, static_cast<std::int32_t>(l));
    }
  }
  phase_ = Phase::kReduced;
  const CalendarIteration& here = (*program_)[iteration_];
  for (std::size_t l = 0; l < program_->layers; ++l) {
    // A layer that did not run in this forward.
    if (!here.at_forward[l].empty()) apply_forward(static_cast<std::int32_t>(l));
  }
  for (std::int32_t a : here.gradients_at_end) apply_reduced(here.applies[static_cast<std::size_t>(a)]);
}

// ---- applies

void Engine::apply_reduced(const CalendarApply& apply) {
  for (std::size_t i = 0; i < apply.tensors.size(); ++i) {
    for (auto p = static_cast<std::size_t>(apply.first_piece[i]);
         p < static_cast<std::size_t>(apply.first_piece[i + 1]); ++p) {
      const OpRef source = apply.pieces[p].source;
      wait_for(run_at(iteration_ + source.delta, source.op),
               apply.at.kind == PointKind::kIterationEnd ? -1 : apply.at.layer);
    }
    if (used(apply, apply.tensors[i]) && !holds_overflow(apply)) install_gradient(apply, i);
  }
}

// Puts the reduced gradient of the apply's tensor number `place` into .grad; several generations add up.
void Engine::install_gradient(const CalendarApply& apply, std::size_t place) {
  const std::int32_t tensor = apply.tensors[place];
  at::Tensor& parameter = this->parameter(tensor);
  at::Tensor& gradient = parameter.mutable_grad();
  const bool local = apply.correction == Correction::kLocal && !draining_ && !overflowed();
  const bool add =
      gradient.defined() && (local || installed_[static_cast<std::size_t>(tensor)] == iteration_);
  installed_[static_cast<std::size_t>(tensor)] = iteration_;
  const auto first = static_cast<std::size_t>(apply.first_piece[place]);
  const auto last = static_cast<std::size_t>(apply.first_piece[place + 1]);
  if (last == first + 1 && !add) {
    const Piece& piece = apply.pieces[first];
    const at::Tensor& flat = run_at(iteration_ + piece.source.delta, piece.source.op).flat;
    if (gradient.defined() && gradient.data_ptr() == flat.data_ptr() && flat.numel() == gradient.numel())
      return;
    gradient = flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset() + piece.offset);
    return;
  }
  if (!gradient.defined() || (!add && gradient.use_count() > 1)) {
    gradient =
        at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().requires_grad(false));
  }
  const at::Tensor target = flat_gradient(tensor);
  for (std::size_t p = first; p < last; ++p) {
    const Piece& piece = apply.pieces[p];
    const Block& block = program_->blocks[static_cast<std::size_t>(piece.block)];
    const at::Tensor part = run_at(iteration_ + piece.source.delta, piece.source.op)
                                .flat.narrow(0, piece.offset, block.end - block.begin);
    at::Tensor to = target.narrow(0, block.begin, block.end - block.begin);
    add ? to.add_(part) : to.copy_(part);
  }
}

void Engine::apply_average(const CalendarApply& apply) {
  for (const Piece& piece : apply.pieces) {
    OpRun& run = run_at(iteration_ + piece.source.delta, piece.source.op);
    wait_for(run, apply.at.kind == PointKind::kIterationEnd ? -1 : apply.at.layer);
    const Block& block = program_->blocks[static_cast<std::size_t>(piece.block)];
    const std::int64_t length = block.end - block.begin;
    at::Tensor to = flat_parameter(program_->block_tensor[static_cast<std::size_t>(piece.block)])
                        .narrow(0, block.begin, length);
    const at::Tensor part = run.flat.narrow(0, piece.offset, length);
    if (run.op->keep_own) {
      add_correction(to, part, run.own.narrow(0, piece.offset, length), world_size_);
    } else {
      at::mul_out(to, part, scale_);
    }
  }
}

void Engine::run_optimizer(const std::vector<std::int32_t>& tensors) {
  if (tensors.empty()) return;
  const auto begin = Clock::now();
  stepper_(subset_id(tensors));
  if (options_.link.timeline) {
    spans_.push_back({.kind = SpanKind::kOptimizer,
                      .iteration = base_ + iteration_,
                      .begin_ns = ns_of(begin),
                      .end_ns = ns_of(Clock::now())});
  }
}

// An apply at forward_start or backward_end: the step of a few tensors, on their own.
void Engine::apply_outside_end(const CalendarApply& apply) {
  const PlainMode plain;
  if (apply.source == Source::kAveragedParameter) return apply_average(apply);
  if (apply.source == Source::kLocalGradient) {
    if (!holds_overflow(apply)) run_optimizer(apply.tensors);
    return;
  }
  std::vector<at::Tensor> before;
  for (std::int32_t t : apply.tensors)
    before.push_back(std::exchange(parameter(t).mutable_grad(), at::Tensor()));
  apply_reduced(apply);
  if (!holds_overflow(apply)) run_optimizer(apply.tensors);
  for (std::size_t i = 0; i < before.size(); ++i)
    parameter(apply.tensors[i]).mutable_grad() = std::move(before[i]);
}

void Engine::forward_start(std::int32_t layer) {
  // Also where the backward will only accumulate: the forward needs the new parameters.
  if (!program_ || phase_ != Phase::kIdle) return;
  apply_forward(layer);
  if (options_.link.timeline) span_begin_ = Clock::now();
}

// Once in an iteration: a module may be used twice, or be computed again.
void Engine::apply_forward(std::int32_t layer) {
  const auto l = static_cast<std::size_t>(layer);
  if (passed_[static_cast<std::size_t>(PointKind::kForwardStart) * program_->layers + l].iteration >=
      iteration_)
    return;
  pass(PointKind::kForwardStart, layer);
  const CalendarIteration& here = (*program_)[iteration_];
  for (std::int32_t a : here.at_forward[l]) apply_outside_end(here.applies[static_cast<std::size_t>(a)]);
}

// An edit of a gradient that was handed over would be lost without a word.
void Engine::check_unchanged(const CalendarIteration& here) {
  const auto check = [&](std::int32_t tensor) {
    const at::Tensor& gradient = parameter(tensor).grad();
    const Handed& then = handed_[static_cast<std::size_t>(tensor)];
    if (!gradient.defined() || then.data == nullptr || !ready_[static_cast<std::size_t>(tensor)]) return;
    if (gradient.const_data_ptr() == then.data && gradient._version() == then.version) return;
    throw InvalidInput(
        "its gradient was changed between backward() and step(), but this plan had handed it over already",
        "parameter '" + program_->index.tensor_names[static_cast<std::size_t>(tensor)] + "'",
        "clip with gradweave.clip_grad_norm_, or choose a scheme that waits for the whole gradient, as ddp");
  };
  for (std::size_t l = 0; l < program_->layers; ++l) {
    for (std::int32_t a : here.at_backward[l])
      std::ranges::for_each(here.applies[static_cast<std::size_t>(a)].tensors, check);
  }
  for (std::size_t b = 0; b < here.gradient.size(); ++b) {
    if (here.gradient_outside_end[b]) check(program_->block_tensor[b]);
  }
}

void Engine::forward_end(std::int32_t layer) {
  if (!program_ || phase_ != Phase::kIdle || !communicating_) return;
  pass(PointKind::kForwardEnd, layer);
  if (options_.link.timeline) {
    spans_.push_back({.kind = SpanKind::kForward,
                      .iteration = base_ + iteration_,
                      .layer = layer,
                      .begin_ns = ns_of(span_begin_),
                      .end_ns = ns_of(Clock::now())});
  }
}

void Engine::end_iteration() {
  check_failure();
  const CalendarIteration& here = (*program_)[iteration_];
  if (phase_ == Phase::kReduced) check_unchanged(here);
  bool updated = false;
  for (const EndAction& action : here.end_actions) {
    if (action.optimizer) {
      if (unscaler_ && !synchronous_ && !drop_overflowed(action.tensors)) continue;
      run_optimizer(action.tensors);
      updated = true;
      continue;
    }
    // An average that is used in the iteration in which it is read: read just before. Other reads come after
    // every apply, so that what is sent holds the corrections that have landed.
    const CalendarApply& apply = here.applies[static_cast<std::size_t>(action.apply)];
    for (const Piece& piece : apply.pieces) {
      if (apply.merges.front() == 0) {
        read_parameters(run_at(iteration_ + piece.source.delta, piece.source.op), PointKind::kIterationEnd,
                        0);
      }
    }
    apply_average(apply);
  }
  counters_.updates += updated;
  read_parameters(PointKind::kIterationEnd, 0);
  pass(PointKind::kIterationEnd, 0);
  advance();
}

void Engine::advance() {
  ++counters_.iterations;
  std::ranges::fill(touched_, 0);
  retire(iteration_);
  ++iteration_;
  phase_ = Phase::kIdle;
  begin_iteration();
}

void Engine::begin_iteration() {
  peers_->outside(base_ + iteration_);
  prepare(iteration_ + program_->look_ahead);
  push_ops(iteration_);
  pass(PointKind::kIterationStart, 0);
}

void Engine::push_ops(std::int64_t iteration) {
  if (iteration <= pushed_) return;
  pushed_ = iteration;
  const std::lock_guard lock(exchange_->mutex);
  for (OpRun& run : runs_[static_cast<std::size_t>(iteration) % runs_.size()]) {
    if (run.op != nullptr && run.iteration == iteration)
      links_[static_cast<std::size_t>(run.op->link)]->push(&run);
  }
}

}  // namespace gradweave::runtime
