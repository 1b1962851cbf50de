#include "run/applies.h"

#include <algorithm>
#include <utility>

#include "gradweave/error.h"

namespace gradweave::run {
namespace {

std::int32_t layer_of(const RunApply& apply) {
  return apply.at.kind == PointKind::kIterationEnd ? -1 : apply.at.layer;
}

}  // namespace

Applies::Applies(const Context& context, const Arrivals& arrivals, Outbox& outbox)
    : context_(context),
      arrivals_(arrivals),
      outbox_(outbox),
      put_(context.plan().blocks.size(), -1),
      waited_for_(context.tables.ring.capacity(), -1),
      ended_(context.plan().layers, -1) {}

void Applies::restart() {
  forget_places();
  std::ranges::fill(ended_, -1);
  late_.clear();
}

void Applies::forget_places() { std::ranges::fill(put_, -1); }

void Applies::wait_for(const Execution& execution, std::int32_t layer) {
  const bool first =
      std::exchange(waited_for_[execution.slot], execution.run_iteration) != execution.run_iteration;
  const std::int64_t before = first ? context_.recorder.before_wait() : 0;
  const Waited wait = context_.queue.wait(execution, layer);
  const auto span = [&]() REQUIRES(compute_thread) {
    return Span{.kind = SpanKind::kWait,
                .iteration = context_.cursor.of_run(),
                .layer = layer,
                .op = execution.place,
                .op_link = execution.op->link,
                .label = "wait",
                .reason = describe(context_.plan(), execution)};
  };
  if (wait.waited) context_.recorder.waited(wait, span);
  context_.host.landed(execution);
  context_.recorder.device_waited(before, span);
}

// Whether some rank had a gradient for the tensor in some iteration of the generation.
bool Applies::used(const RunApply& apply, std::int32_t tensor) const {
  if (!context_.flags.may_be_unused()) return true;
  return std::ranges::any_of(apply.merges, [&](std::int32_t m) REQUIRES(compute_thread) {
    const std::int64_t iteration = context_.cursor.now() + m;
    return context_.cursor.exists(iteration) && context_.flags.used(iteration, tensor);
  });
}

void Applies::put_reduced(const RunApply& apply) {
  const RunPlan& plan = context_.plan();
  for (std::size_t i = 0; i < apply.tensors.size(); ++i) {
    for (auto p = static_cast<std::size_t>(apply.first_piece[i]);
         p < static_cast<std::size_t>(apply.first_piece[i + 1]); ++p) {
      wait_for(*context_.part_of(apply.pieces[p]).from, layer_of(apply));
    }
    if (context_.holds_left_out(apply)) continue;
    const auto tensor = static_cast<std::size_t>(apply.tensors[i]);
    if (used(apply, apply.tensors[i])) {
      put_gradient(apply, i);
    } else if (apply.merges.back() < 0 && apply.correction == Correction::kNone && !plan.sliced[tensor]) {
      // What is there is this iteration's own gradient, which another step will use.
      if (!is_in_place(plan.blocks_of_tensor[tensor].front())) context_.host.drop_gradient(apply.tensors[i]);
    }
  }
}

// Puts the gradient of the apply's tensor number `place` in place, as far as it is reduced here; several
// generations add up.
void Applies::put_gradient(const RunApply& apply, std::size_t place) {
  const std::int32_t tensor = apply.tensors[place];
  const std::int64_t now = context_.cursor.now();
  parts_.clear();
  for (auto p = static_cast<std::size_t>(apply.first_piece[place]);
       p < static_cast<std::size_t>(apply.first_piece[place + 1]); ++p)
    parts_.push_back(context_.part_of(apply.pieces[p]));
  const bool local =
      apply.correction == Correction::kLocal && !context_.cursor.draining() && !context_.flags.left_out(now);
  // Blocks that are there already come first. Where the tensor is stepped as a whole, it is all or none.
  const auto others = std::ranges::partition(
      parts_, [&](const Part& part) REQUIRES(compute_thread) { return local || is_in_place(part.block); });
  const auto there = static_cast<std::size_t>(others.begin() - parts_.begin());
  for (const Part& part : parts_) put_[static_cast<std::size_t>(part.block)] = now;
  if (there > 0) context_.host.put_gradient(tensor, std::span(parts_).first(there), true);
  if (there < parts_.size()) context_.host.put_gradient(tensor, std::span(parts_).subspan(there), false);
}

void Applies::average(const RunApply& apply) {
  if (apply.mode == Mode::kReplace) check_parameters(apply);
  for (const Piece& piece : apply.pieces) {
    const Part part = context_.part_of(piece);
    wait_for(*part.from, layer_of(apply));
    context_.host.average_parameter(part);
  }
}

void Applies::step(const Stepped& stepped) {
  if (stepped.empty()) return;
  // Other blocks of their tensors may wait for an update: this change is not the caller's.
  std::vector<std::int32_t> unchanged;
  for (const std::int32_t b : stepped.blocks) {
    const std::int32_t tensor = context_.plan().block_tensor[static_cast<std::size_t>(b)];
    if (!context_.host.parameter_changed(tensor)) unchanged.push_back(tensor);
  }
  context_.host.step(stepped);
  for (const std::int32_t tensor : unchanged) context_.host.note_parameter(tensor);
  context_.recorder.end_span(SpanKind::kOptimizer, context_.cursor.of_run(), -1);
  context_.recorder.stepped(context_.cursor.now());
}

void Applies::outside_end(const std::vector<std::int32_t>& applies) {
  if (applies.empty()) return;
  const std::int64_t begin = context_.recorder.before_update();
  for (const std::int32_t a : applies) outside_end(context_.here().applies[static_cast<std::size_t>(a)]);
  context_.recorder.update_ended(begin);
}

void Applies::outside_end(const RunApply& apply) {
  context_.recorder.begin_span();
  if (apply.source == Source::kAveragedParameter) return average(apply);
  if (apply.source == Source::kLocalGradient) {
    if (!context_.holds_left_out(apply)) step(apply.stepped);
    return outbox_.read_parameters(apply);
  }
  const bool noted = apply.at.kind == PointKind::kForwardStart &&
                     (!context_.cursor.draining() || context_.cursor.begins_drain());
  context_.host.set_gradients_aside(apply.tensors);
  put_reduced(apply);
  if (!context_.holds_left_out(apply)) step(in_place(apply.stepped));
  context_.host.put_gradients_back(apply.tensors);
  if (noted) {
    for (std::int32_t t : apply.tensors) context_.host.note_parameter(t);
  }
  for (std::int32_t b : apply.blocks) put_[static_cast<std::size_t>(b)] = -1;
}

bool Applies::must_wait(const RunApply& apply, std::int32_t layer) const {
  if (apply.source == Source::kLocalGradient)
    return !std::ranges::all_of(
        apply.tensors, [&](std::int32_t t) REQUIRES(compute_thread) { return arrivals_.has_come(t); });
  if (arrivals_.missing_from(layer)) return true;
  return apply.source == Source::kReducedGradient && apply.merges.back() == 0 &&
         context_.flags.may_be_unused();
}

void Applies::backward_end(std::int32_t layer) {
  const RunIteration& now = context_.here();
  const std::vector<std::int32_t>& due = now.at_backward[static_cast<std::size_t>(layer)];
  const auto waits = [&](std::int32_t a) REQUIRES(compute_thread) {
    return must_wait(now.applies[static_cast<std::size_t>(a)], layer);
  };
  const auto to_come = [&](std::int32_t before) REQUIRES(compute_thread) {
    return ended_[static_cast<std::size_t>(before)] != context_.cursor.now();
  };
  ended_[static_cast<std::size_t>(layer)] = context_.cursor.now();
  if (late_.empty() && std::ranges::none_of(due, waits) &&
      std::ranges::none_of(now.applied_before[static_cast<std::size_t>(layer)], to_come)) {
    outside_end(due);
  } else {
    late_.insert(late_.end(), due.begin(), due.end());
  }
}

void Applies::backward_ended() {
  // Layers that were not used have ended last. An op of theirs may be before the one that another apply waits for.
  std::ranges::stable_sort(late_, std::ranges::greater(), [&](std::int32_t a) REQUIRES(compute_thread) {
    return context_.here().applies[static_cast<std::size_t>(a)].at.layer;
  });
  outside_end(std::exchange(late_, {}));
}

const Stepped& Applies::in_place(const Stepped& stepped) {
  if (stepped.blocks.empty()) return stepped;
  left_ = stepped;
  std::erase_if(left_.blocks, [&](std::int32_t b) REQUIRES(compute_thread) { return !is_in_place(b); });
  return left_;
}

const Stepped& Applies::sound(const Stepped& stepped) {
  const Flags& flags = context_.flags;
  const std::int64_t now = context_.cursor.now();
  if (!flags.left_out_lately(now) && stepped.blocks.empty()) return stepped;
  const RunPlan& plan = context_.plan();
  std::vector<std::uint8_t> tensors(plan.index.tensors.size()), blocks(put_.size());
  for (const RunApply& apply : context_.here().applies) {
    if (apply.at.kind != PointKind::kIterationEnd || apply.source == Source::kAveragedParameter) continue;
    // A correction adds to the local gradient of this iteration: either may be sound alone.
    const bool local = (apply.source == Source::kLocalGradient || apply.correction == Correction::kLocal) &&
                       !flags.left_out(now);
    const bool reduced = apply.source == Source::kReducedGradient && !context_.holds_left_out(apply);
    if (!local && !reduced) continue;
    for (std::int32_t tensor : apply.stepped.tensors) {
      const auto t = static_cast<std::size_t>(tensor);
      // Where no rank used it then, what is there is this iteration's own gradient.
      tensors[t] |= local || !flags.left_out(now) || is_in_place(plan.blocks_of_tensor[t].front());
    }
    for (std::int32_t block : apply.stepped.blocks) {
      const auto b = static_cast<std::size_t>(block);
      const std::int32_t tensor = plan.block_tensor[b];
      const bool computed = arrivals_.used(tensor) && context_.host.kept(tensor) != Kept::kGone;
      blocks[b] |= (reduced && is_in_place(block)) || (local && computed);
    }
  }
  left_ = stepped;
  bool any = false;
  for (std::int32_t t : stepped.tensors) {
    any |= tensors[static_cast<std::size_t>(t)] != 0;
    if (!tensors[static_cast<std::size_t>(t)]) context_.host.drop_gradient(t);
  }
  if (!any) left_.tensors.clear();
  std::erase_if(left_.blocks, [&](std::int32_t b) { return !blocks[static_cast<std::size_t>(b)]; });
  return left_;
}

void Applies::note_parameters() {
  for (const RunApply& apply : context_.plan()[context_.cursor.now() + 1].applies) {
    if (apply.at.kind != PointKind::kForwardStart || apply.source != Source::kReducedGradient) continue;
    for (std::int32_t t : apply.tensors) context_.host.note_parameter(t);
  }
}

void Applies::check_unchanged(const std::vector<std::int32_t>& applies) const {
  for (const std::int32_t a : applies) {
    const RunApply& apply = context_.here().applies[static_cast<std::size_t>(a)];
    if (apply.source == Source::kReducedGradient ||
        (apply.source == Source::kAveragedParameter && apply.mode == Mode::kReplace)) {
      check_parameters(apply);
    }
  }
}

void Applies::check_parameters(const RunApply& apply) const {
  for (std::int32_t t : apply.tensors) {
    if (!context_.host.parameter_changed(t)) continue;
    throw InvalidInput(
        "it was changed after step(), while its update was on its way (" + context_.cursor.text() + ")",
        context_.text_of(t),
        "call model.gradweave.synchronize() before changing parameters (C++: Session::synchronize())");
  }
}

}  // namespace gradweave::run
