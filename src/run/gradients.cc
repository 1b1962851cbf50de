// Gradients and parameters on their way into messages, and what ranks tell each other of them.
#include <algorithm>
#include <utility>

#include "gradweave/error.h"
#include "run/run.h"

namespace gradweave::run {

// The host has the gradient: its blocks go where the plan sends them.
void Run::hand_over(std::int32_t tensor) {
  completed_.clear();
  for (std::int32_t b : tables_->calendar.blocks_of_tensor[static_cast<std::size_t>(tensor)])
    hand_over_block(b);
  for (const Execution* execution : completed_) {
    host_.filled(*execution);
    queue_->arrive(*execution, 1);
  }
}

void Run::hand_over_block(std::int32_t block) {
  const auto b = static_cast<std::size_t>(block);
  const Calendar& calendar = tables_->calendar;
  const OpRef carrier = here().gradient[b];
  const bool sent = carrier.op >= 0;
  if (!sent && !here().dropped[b]) return;
  if (calendar.residual.enabled || host_.has_residual(block))
    host_.compensate(block, residual_coefficient(), sent);
  if (!sent) return;
  Execution& execution = at(iteration_ + carrier.delta, carrier.op);
  const CalendarOp& op = *execution.op;
  completed_.push_back(&execution);
  if (op.in_place && host_.lend_gradient(execution)) return;
  const auto place = static_cast<std::size_t>(std::ranges::find(op.blocks, block) - op.blocks.begin());
  const bool first = !std::exchange(execution.written[place], 1);
  const bool mean = calendar.merge == Merge::kMean && !op.keep_own;
  host_.write_gradient(execution, place, first, mean ? static_cast<std::int32_t>(op.merges.size()) : 1);
}

// The iterations of the whole run count: a drain in between changes nothing. What another plan's residual
// holds is not lost where this one has none.
double Run::residual_coefficient() const {
  const Residual& rule = tables_->calendar.residual;
  if (!rule.enabled) return 1;
  const std::int64_t stage = (base_ + iteration_) / std::max<std::int64_t>(rule.every, 1);
  return std::min(rule.cap, rule.initial + static_cast<double>(stage) * rule.step);
}

// Copies the parameters that are sent as they are after a local step, which has just been made.
void Run::read_parameters(const CalendarApply& apply) {
  for (auto next = apply.reads.begin(); next != apply.reads.end();) {
    const OpRef op = next->op;
    const Execution& execution = at(iteration_ + op.delta, op.op);
    std::int32_t read = 0;
    for (; next != apply.reads.end() && next->op == op; ++next, ++read)
      host_.read_parameter(execution, static_cast<std::size_t>(next->at));
    host_.filled(execution);
    queue_->arrive(execution, read);
  }
}

// Tells the other ranks which parameters had a gradient here, and whether all were finite. The first answer
// is needed only where it is applied.
void Run::exchange_flags() {
  const std::size_t tensors = ready_.size();
  Flags& flags = flags_at(iteration_);
  finish_exchange(flags);  // of an iteration long ago that nobody asked about
  std::vector<std::uint8_t>& values = flags.values;
  bool some_unused = false;
  for (std::size_t t = 0; t < tensors; ++t) {
    values[t] = ready_[t] | touched_[t];
    some_unused |= values[t] == 0;
  }
  values[tensors] = some_unused;
  values[tensors + 1] = (scaled_ && host_.overflowed()) || (options_.check && host_.not_finite() >= 0);
  if (find_unused_ == FindUnused::kOff && some_unused) {
    const auto unused = std::ranges::find(values, 0) - values.begin();
    throw InvalidInput("it got no gradient in this backward", tensor_text(static_cast<std::int32_t>(unused)),
                       "pass find_unused_parameters=True to gradweave.wrap()");
  }
  const bool ask_at_once = scaled_ || options_.check;
  if ((find_unused_ != FindUnused::kOff || ask_at_once) && options_.world_size > 1) {
    flags.exchanging = true;
    host_.begin_exchange(static_cast<std::size_t>(iteration_) % flags_.size(), values);
    // Every apply from here on depends on the overflow, and the first iteration's answer decides on the next.
    if (find_unused_ == FindUnused::kAuto || ask_at_once) finish_exchange(flags);
    if (find_unused_ == FindUnused::kAuto)
      find_unused_ = values[tensors] ? FindUnused::kOn : FindUnused::kOff;
  }
  flags.spoilt = false;
  if (!ask_at_once || values[tensors + 1] == 0) return;
  if (!scaled_) refuse_not_finite();
  flags.spoilt = true;
  last_spoilt_ = iteration_;
  leave_no_residual();
}

// What this iteration's gradient has left in residuals would stay for ever.
void Run::leave_no_residual() {
  host_.restore_residuals();
  for (std::int64_t n = iteration_; n <= prepared_; ++n) {
    for (const Execution& execution : tables_->ring.row(n)) {
      if (execution.op == nullptr || execution.op->payload != Payload::kGradient) continue;
      if (std::ranges::find(execution.op->merges, iteration_ - n) != execution.op->merges.end())
        host_.leave_out(execution);
    }
  }
}

// On every rank alike, since each of them would go on with the sum.
void Run::refuse_not_finite() {
  const std::int32_t own = host_.not_finite();
  const std::vector<std::string> where =
      peers_->agree("the check of gradients", own < 0 ? "" : tensor_text(own), options_.queue.timeout);
  std::string found;
  for (std::size_t r = 0; r < where.size(); ++r) {
    if (where[r].empty()) continue;
    found += (found.empty() ? "" : "; ") + where[r] + " on rank " + std::to_string(r);
  }
  throw InvalidInput(
      "a gradient is not finite: " + found, iteration_text(),
      "look at that rank's batch and loss; to drop such a batch, look at the loss of all ranks "
      "before backward()");
}

void Run::finish_exchange(Flags& flags) {
  if (!flags.exchanging) return;
  flags.exchanging = false;
  const auto begin = Clock::now();
  try {
    host_.finish_exchange(static_cast<std::size_t>(&flags - flags_.data()));
  } catch (const std::exception& error) {
    fail("the exchange of used parameters", Clock::now() - begin, error.what());
  }
}

// Whether some rank had a gradient for the tensor in some iteration of the generation.
bool Run::used(const CalendarApply& apply, std::int32_t tensor) {
  if (find_unused_ == FindUnused::kOff) return true;
  return std::ranges::any_of(apply.merges, [&](std::int32_t m) {
    if (!exists(iteration_ + m)) return false;
    Flags& then = flags_at(iteration_ + m);
    finish_exchange(then);
    return then.values[static_cast<std::size_t>(tensor)] != 0;
  });
}

// Whether what the apply uses holds a gradient of an iteration that is left out.
bool Run::holds_spoilt(const CalendarApply& apply) const {
  if (last_spoilt_ < 0) return false;
  return std::ranges::any_of(
      apply.merges, [&](std::int32_t m) { return exists(iteration_ + m) && spoilt(iteration_ + m); });
}

}  // namespace gradweave::run
