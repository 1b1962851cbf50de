#include "run/outbox.h"

#include <algorithm>
#include <utility>

#include "gradweave/compression.h"

namespace gradweave::run {
namespace {

bool keeps_residual(const Compression& compression) {
  return !compression.name.empty() && find_compressor(compression.name).error_feedback;
}

}  // namespace

Outbox::Outbox(const Context& context, const Window& window)
    : context_(context),
      window_(window),
      owed_(context.plan().index.tensors.size()),
      given_(context.plan().index.tensors.size()) {}

void Outbox::hand_over(std::int32_t tensor, Gradient gradient) {
  const auto t = static_cast<std::size_t>(tensor);
  completed_.clear();
  owed_[t] = 0;
  for (std::int32_t b : context_.plan().blocks_of_tensor[t]) hand_over_block(b, gradient);
  given_[t] |= gradient != Gradient::kNone;
  for (const Execution* execution : completed_) {
    context_.host.filled(*execution);
    context_.queue.arrive(*execution, 1);
  }
}

void Outbox::hand_over_block(std::int32_t block, Gradient gradient) {
  const auto b = static_cast<std::size_t>(block);
  const RunPlan& plan = context_.plan();
  Host& host = context_.host;
  const OpRef carrier = context_.here().gradient[b];
  const bool sent = carrier.op >= 0;
  if (!sent && !context_.here().dropped[b]) return;
  const bool owes = host.has_residual(block);
  if (plan.residual.enabled || owes) host.compensate(block, residual_coefficient(), sent);
  if (!sent) return;
  Execution& execution = context_.near(carrier);
  const RunOp& op = *execution.op;
  const auto t = static_cast<std::size_t>(plan.block_tensor[b]);
  owed_[t] |= owes || (gradient == Gradient::kHeld && context_.here().gradient_outside_end[b]) ||
              ((given_[t] || host.codec_began_with_residual(block)) && keeps_residual(op.compression));
  completed_.push_back(&execution);
  // What was held stays as it is if no rank has used the tensor.
  if (op.in_place && gradient != Gradient::kHeld && host.lend_gradient(execution)) return;
  const auto place = static_cast<std::size_t>(std::ranges::find(op.blocks, block) - op.blocks.begin());
  const bool first = !std::exchange(execution.written[place], 1);
  const bool mean = plan.merge == Merge::kMean && !op.keep_own;
  host.write_gradient(execution, place, first, mean ? static_cast<std::int32_t>(op.merges.size()) : 1);
}

// The iterations of the whole run count: a drain in between changes nothing. What another plan's residual
// holds is not lost where this one has none.
double Outbox::residual_coefficient() const {
  const Residual& rule = context_.plan().residual;
  if (!rule.enabled) return 1;
  const std::int64_t stage = context_.cursor.of_run() / std::max<std::int64_t>(rule.every, 1);
  return std::min(rule.cap, rule.initial + static_cast<double>(stage) * rule.step);
}

void Outbox::read_parameters(const RunApply& apply) {
  for (auto next = apply.reads.begin(); next != apply.reads.end();) {
    const OpRef op = next->op;
    const Execution& execution = context_.near(op);
    std::int32_t read = 0;
    for (; next != apply.reads.end() && next->op == op; ++next, ++read)
      context_.host.read_parameter(execution, static_cast<std::size_t>(next->part));
    context_.host.filled(execution);
    context_.queue.arrive(execution, read);
  }
}

void Outbox::leave_out() {
  context_.host.restore_residuals();
  const std::int64_t now = context_.cursor.now();
  for (std::int64_t n = now; n <= window_.last(); ++n) {
    for (const Execution& execution : window_.row(n)) {
      if (execution.op == nullptr || execution.op->payload != Payload::kGradient) continue;
      if (std::ranges::find(execution.op->merges, now - n) != execution.op->merges.end())
        context_.host.leave_out(execution);
    }
  }
}

void Outbox::leave_out_later_steps(std::int64_t iteration) {
  const std::int64_t now = context_.cursor.now();
  for (const Execution& execution : window_.row(iteration)) {
    if (execution.op == nullptr || execution.before == nullptr) continue;
    const auto left_out = [&](std::int32_t m) REQUIRES(compute_thread) {
      const std::int64_t of = iteration + m;
      return of >= 0 && of < now && context_.flags.left_out(of);
    };
    if (std::ranges::any_of(execution.op->merges, left_out)) context_.host.leave_out(execution);
  }
}

}  // namespace gradweave::run
