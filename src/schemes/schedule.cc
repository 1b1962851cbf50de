#include "schemes/schedule.h"

#include <algorithm>
#include <cassert>

#include "simulate/fluid_link.h"

namespace gradweave {
namespace {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
// Measured.
constexpr std::size_t kStepsPerSharedOp = 40, kStepsPerTrial = 10, kStepsPerKeptOp = 2;
constexpr Nanoseconds kNoRest = std::numeric_limits<Nanoseconds>::min() / 2;

std::vector<std::size_t> links_of(std::span<const ScheduledOp> ops) {
  std::vector<std::size_t> links;
  links.reserve(ops.size());
  for (const ScheduledOp& op : ops) links.push_back(op.link);
  return links;
}

}  // namespace

Schedule::Schedule(const CostModel& model, std::span<const ScheduledOp> ops)
    : link_count_(model.link_count()) {
  const WorkloadIndex& index = model.index();
  compute_ = index.compute_total;
  for (const Link& link : model.cluster().links) {
    concurrency_.push_back(link.concurrency);
    shared_ = shared_ || link.concurrency != 1;
  }
  ops_.reserve(ops.size());
  costs_.reserve(ops.size() * link_count_);
  for (const ScheduledOp& op : ops) {
    Nanoseconds rest = kNoRest;
    if (op.needed_by == kIterationEnd) rest = index.forward_total;
    if (op.needed_by < index.layer_count) rest = index.forward_total - index.forward_start[op.needed_by];
    ops_.push_back({index.backward_end[op.ready_layer] - index.forward_total + op.delay, op.after, rest});
    for (std::size_t k = 0; k < link_count_; ++k) costs_.push_back(model.cost(k, op.collective, op.slices));
  }
}

std::size_t Schedule::run_in_order(std::span<const std::size_t> links, std::size_t first,
                                   std::span<const Nanoseconds> ends_before, Nanoseconds limit,
                                   std::span<Nanoseconds> free, ScheduleTimes& times) const {
  for (std::size_t i = first; i < ops_.size(); ++i) {
    const Item& op = ops_[i];
    Nanoseconds start = std::max(free[links[i]], op.ready);
    if (op.after != kNoOp)
      start = std::max(start, op.after < first ? ends_before[op.after] : times.end[op.after]);
    const Nanoseconds end = start + cost(i, links[i]).total();
    if (end + op.rest >= limit) return i;
    times.start[i] = start;
    free[links[i]] = times.end[i] = end;
  }
  return ops_.size();
}

std::size_t Schedule::run_shared(std::span<const std::size_t> links, Nanoseconds limit,
                                 ScheduleTimes& times) const {
  struct LinkState {
    FluidLink fluid;
    std::vector<std::size_t> queue;  // ops in issue order
    std::size_t next = 0;
    std::size_t slots = 0;
  };
  std::vector<LinkState> states(link_count_);
  for (std::size_t k = 0; k < link_count_; ++k)
    states[k].slots = concurrency_[k] == 0 ? ops_.size() : static_cast<std::size_t>(concurrency_[k]);
  for (std::size_t i = 0; i < ops_.size(); ++i) states[links[i]].queue.push_back(i);
  std::ranges::fill(times.end, kNever);

  const auto may_start_at = [&](const LinkState& state) {
    if (state.next == state.queue.size() || state.fluid.outstanding() >= state.slots) return kNever;
    const Item& op = ops_[state.queue[state.next]];
    if (op.after == kNoOp) return op.ready;
    return times.end[op.after] == kNever ? kNever : std::max(op.ready, times.end[op.after]);
  };
  std::size_t ended = 0;
  while (true) {
    Nanoseconds now = kNever;
    for (const LinkState& state : states)
      now = std::min({now, state.fluid.next_event(), may_start_at(state)});
    if (now == kNever) return ended;
    for (std::size_t k = 0; k < link_count_; ++k) {
      LinkState& state = states[k];
      bool too_late = false;
      state.fluid.update(now, [&](std::int64_t id) {
        const auto op = static_cast<std::size_t>(id);
        times.end[op] = now;
        ++ended;
        too_late |= now + ops_[op].rest >= limit;
      });
      if (too_late) return std::min(ended, ops_.size() - 1);
      while (may_start_at(state) <= now) {
        const std::size_t op = state.queue[state.next++];
        const OpCost& each = cost(op, k);
        times.start[op] = now;
        // On a link that serves one op at a time, start-up holds the link like work.
        const bool alone = concurrency_[k] == 1;
        state.fluid.start(static_cast<std::int64_t>(op), now, alone ? 0 : each.startup,
                          alone ? each.total() : each.work);
      }
    }
  }
}

ScheduleTimes Schedule::times(std::span<const std::size_t> links) const {
  assert(links.size() == ops_.size());
  ScheduleTimes times{std::vector<Nanoseconds>(ops_.size()), std::vector<Nanoseconds>(ops_.size())};
  if (shared_) {
    run_shared(links, kNever, times);
  } else {
    std::vector<Nanoseconds> free(link_count_, 0);
    run_in_order(links, 0, {}, kNever, free, times);
  }
  times.iteration = compute_;
  for (std::size_t i = 0; i < ops_.size(); ++i)
    times.iteration = std::max(times.iteration, times.end[i] + ops_[i].rest);
  return times;
}

Nanoseconds Schedule::iteration(std::span<const std::size_t> links) const { return times(links).iteration; }

std::size_t Schedule::critical_op(const ScheduleTimes& times) const {
  if (times.iteration == compute_) return kNoOp;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (times.end[i] + ops_[i].rest == times.iteration) return i;
  }
  return kNoOp;
}

ScheduleTrials::ScheduleTrials(const Schedule& schedule, std::vector<std::size_t> links)
    : schedule_(schedule), links_(std::move(links)), free_(schedule.link_count()) {
  keep();
}

void ScheduleTrials::keep() {
  best_ = schedule_.times(links_);
  steps_ += links_.size() * (schedule_.shared_ ? kStepsPerSharedOp : kStepsPerKeptOp);
  trial_ = best_;
  const std::size_t width = schedule_.link_count();
  free_before_.assign((links_.size() + 1) * width, 0);
  latest_before_.assign(links_.size() + 1, kNoRest);
  for (std::size_t i = 0; i < links_.size(); ++i) {
    Nanoseconds* next = &free_before_[(i + 1) * width];
    std::copy_n(next - width, width, next);
    next[links_[i]] = best_.end[i];
    latest_before_[i + 1] = std::max(latest_before_[i], best_.end[i] + schedule_.ops_[i].rest);
  }
}

bool ScheduleTrials::shorter(std::size_t first) {
  const Nanoseconds limit = best_.iteration;
  if (schedule_.compute_ >= limit) return false;
  if (schedule_.shared_) {
    const std::size_t ended = schedule_.run_shared(links_, limit, trial_);
    steps_ += kStepsPerTrial + ended * kStepsPerSharedOp;
    return ended == links_.size();
  }
  if (latest_before_[first] >= limit) return false;
  std::copy_n(&free_before_[first * free_.size()], free_.size(), free_.begin());
  const std::size_t past = schedule_.run_in_order(links_, first, best_.end, limit, free_, trial_);
  steps_ += kStepsPerTrial + past - first;
  return past == links_.size();
}

Nanoseconds iteration_time(const CostModel& model, std::span<const ScheduledOp> ops) {
  return Schedule(model, ops).iteration(links_of(ops));
}

std::vector<ScheduledOp> scheduled_when_ready(const CostModel& model, std::span<const Message> messages) {
  std::vector<ScheduledOp> ops;
  for (const Message& message : messages) {
    ops.push_back({.slices = message.slices, .ready_layer = last_ready_layer(model, message.slices)});
  }
  return ops;
}

Plan synchronous_plan(const CostModel& model, std::span<const ScheduledOp> ops) {
  Plan plan = new_plan(model, 1);
  Iteration& iteration = plan.period[0];
  Apply apply{.at = {.kind = PointKind::kIterationEnd}, .merges = {0}};
  for (const ScheduledOp& scheduled : ops) {
    Op op{.link = plan.links[scheduled.link].name, .merges = {0}};
    op.blocks = add_blocks(plan, model, scheduled.slices);
    op.release = {
        {.kind = PointKind::kBackwardEnd, .layer = static_cast<std::int32_t>(scheduled.ready_layer)},
        scheduled.delay};
    apply.blocks.insert(apply.blocks.end(), op.blocks.begin(), op.blocks.end());
    iteration.ops.push_back(std::move(op));
  }
  if (!apply.blocks.empty()) iteration.applies.push_back(std::move(apply));
  return plan;
}

Plan overlapped_plan(const CostModel& model, std::span<const ScheduledOp> ops) {
  const WorkloadIndex& index = model.index();
  const ScheduleTimes times = Schedule(model, ops).times(links_of(ops));
  Plan plan = new_plan(model, 1);
  std::vector<Op> carried, own;
  std::vector<std::vector<std::int32_t>> blocks_of_op(ops.size());
  std::vector<std::vector<std::int32_t>> blocks_of_layer(index.layer_count);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const ScheduledOp& scheduled = ops[i];
    const bool gather = scheduled.collective == Collective::kAllGather;
    if (scheduled.after == kNoOp) {
      blocks_of_op[i] = add_blocks(plan, model, scheduled.slices);
      for (std::size_t b = 0; b < scheduled.slices.size(); ++b) {
        blocks_of_layer[index.tensors[scheduled.slices[b].tensor].layer].push_back(blocks_of_op[i][b]);
      }
    } else {
      blocks_of_op[i] = blocks_of_op[scheduled.after];
    }
    const bool next_iteration =
        gather || (scheduled.collective == Collective::kAllReduce && times.start[i] >= index.backward_total);
    Op op{.link = plan.links[scheduled.link].name,
          .collective = scheduled.collective,
          .blocks = blocks_of_op[i],
          .merges = {next_iteration ? -1 : 0}};
    if (!gather) {
      op.release = {{.kind = PointKind::kBackwardEnd,
                     .layer = static_cast<std::int32_t>(scheduled.ready_layer),
                     .iteration = next_iteration ? -1 : 0},
                    scheduled.delay};
    }
    (next_iteration ? carried : own).push_back(std::move(op));
  }
  Iteration& iteration = plan.period[0];
  iteration.ops = std::move(carried);
  std::ranges::move(own, std::back_inserter(iteration.ops));
  for (std::size_t l = 0; l < index.layer_count; ++l) {
    if (blocks_of_layer[l].empty()) continue;
    iteration.applies.push_back(
        {.at = {.kind = PointKind::kForwardStart, .layer = static_cast<std::int32_t>(l)},
         .blocks = std::move(blocks_of_layer[l]),
         .merges = {-1}});
  }
  return plan;
}

}  // namespace gradweave
