#include "schemes/schedule.h"

#include <algorithm>
#include <cassert>

namespace gradweave {
namespace {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

std::vector<std::size_t> links_of(std::span<const ScheduledOp> ops) {
  std::vector<std::size_t> links;
  links.reserve(ops.size());
  for (const ScheduledOp& op : ops) links.push_back(op.link);
  return links;
}

}  // namespace

Schedule::Schedule(const CostModel& model, std::span<const ScheduledOp> ops)
    : link_count_(model.link_count()), backward_total_(model.index().backward_total) {
  const WorkloadIndex& index = model.index();
  for (std::size_t l = 0; l < index.layer_count; ++l)
    forward_.push_back(index.forward_end[l] - index.forward_start[l]);
  for (const Link& link : model.cluster().links) {
    concurrency_.push_back(link.concurrency);
    shared_ = shared_ || link.concurrency != 1;
  }
  ops_.reserve(ops.size());
  costs_.reserve(ops.size() * link_count_);
  for (const ScheduledOp& op : ops) {
    ops_.push_back(
        {index.backward_end[op.ready_layer] - index.forward_total + op.delay, op.after, op.needed_by});
    for (std::size_t k = 0; k < link_count_; ++k) costs_.push_back(model.cost(k, op.collective, op.slices));
  }
}

void Schedule::run_in_order(std::span<const std::size_t> links, ScheduleTimes& times) const {
  std::vector<Nanoseconds> free(link_count_, 0);
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Item& op = ops_[i];
    Nanoseconds start = std::max(free[links[i]], op.ready);
    if (op.after != kNoOp) start = std::max(start, times.end[op.after]);
    times.start[i] = start;
    free[links[i]] = times.end[i] = start + cost(i, links[i]).total();
  }
}

void Schedule::run_shared(std::span<const std::size_t> links, ScheduleTimes& times) const {
  struct LinkState {
    std::vector<std::size_t> queue;  // ops in issue order
    std::size_t next = 0;
    std::vector<std::size_t> starting;  // paying their start-up
    std::vector<std::size_t> active;
    Nanoseconds shared_until = 0;  // up to here the active ops' work has been taken off
  };
  std::vector<LinkState> states(link_count_);
  for (std::size_t i = 0; i < ops_.size(); ++i) states[links[i]].queue.push_back(i);
  std::vector<Nanoseconds> remaining(ops_.size());
  std::fill(times.end.begin(), times.end.end(), kNever);

  const auto startup = [&](std::size_t op, std::size_t k) {
    return concurrency_[k] == 1 ? 0 : cost(op, k).startup;
  };
  const auto may_start_at = [&](std::size_t k) {
    const LinkState& state = states[k];
    const std::size_t slots = concurrency_[k] == 0 ? ops_.size() : static_cast<std::size_t>(concurrency_[k]);
    if (state.next == state.queue.size() || state.active.size() + state.starting.size() >= slots)
      return kNever;
    const Item& op = ops_[state.queue[state.next]];
    if (op.after == kNoOp) return op.ready;
    return times.end[op.after] == kNever ? kNever : std::max(op.ready, times.end[op.after]);
  };
  const auto active_end = [&](std::size_t op, const LinkState& state) {
    return state.shared_until + remaining[op] * static_cast<Nanoseconds>(state.active.size());
  };
  const auto next_event = [&](std::size_t k) {
    Nanoseconds next = may_start_at(k);
    for (std::size_t op : states[k].active) next = std::min(next, active_end(op, states[k]));
    for (std::size_t op : states[k].starting) next = std::min(next, times.start[op] + startup(op, k));
    return next;
  };
  // Each active op loses its share of the time since the last change of the active set.
  const auto share = [&](LinkState& state, Nanoseconds now) {
    if (!state.active.empty()) {
      const Nanoseconds part = (now - state.shared_until) / static_cast<Nanoseconds>(state.active.size());
      for (std::size_t op : state.active) remaining[op] -= part;
    }
    state.shared_until = now;
  };
  const auto start_work = [&](std::size_t op, std::size_t k, Nanoseconds now) {
    share(states[k], now);
    remaining[op] = cost(op, k).total() - startup(op, k);
    if (remaining[op] == 0) {
      times.end[op] = now;
    } else {
      states[k].active.push_back(op);
    }
  };
  const auto advance = [&](std::size_t k, Nanoseconds now) {
    LinkState& state = states[k];
    if (std::ranges::any_of(state.active, [&](std::size_t op) { return active_end(op, state) <= now; })) {
      share(state, now);
      std::erase_if(state.active, [&](std::size_t op) {
        if (remaining[op] == 0) times.end[op] = now;
        return remaining[op] == 0;
      });
    }
    std::erase_if(state.starting, [&](std::size_t op) {
      const bool over = times.start[op] + startup(op, k) <= now;
      if (over) start_work(op, k, now);
      return over;
    });
    while (may_start_at(k) <= now) {
      const std::size_t op = state.queue[state.next++];
      times.start[op] = now;
      if (startup(op, k) == 0) {
        start_work(op, k, now);
      } else {
        state.starting.push_back(op);
      }
    }
  };
  while (true) {
    Nanoseconds now = kNever;
    for (std::size_t k = 0; k < link_count_; ++k) now = std::min(now, next_event(k));
    if (now == kNever) break;
    for (std::size_t k = 0; k < link_count_; ++k) {
      if (next_event(k) <= now) advance(k, now);
    }
  }
}

Nanoseconds Schedule::iteration_of(const ScheduleTimes& times) const {
  std::vector<Nanoseconds> done(forward_.size(), 0);
  Nanoseconds now = backward_total_;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].needed_by == kIterationEnd) now = std::max(now, times.end[i]);
    if (ops_[i].needed_by < done.size())
      done[ops_[i].needed_by] = std::max(done[ops_[i].needed_by], times.end[i]);
  }
  for (std::size_t l = 0; l < forward_.size(); ++l) now = std::max(now, done[l]) + forward_[l];
  return now;
}

ScheduleTimes Schedule::times(std::span<const std::size_t> links) const {
  assert(links.size() == ops_.size());
  ScheduleTimes times{std::vector<Nanoseconds>(ops_.size()), std::vector<Nanoseconds>(ops_.size())};
  if (shared_) {
    run_shared(links, times);
  } else {
    run_in_order(links, times);
  }
  times.iteration = iteration_of(times);
  return times;
}

Nanoseconds Schedule::iteration(std::span<const std::size_t> links) const { return times(links).iteration; }

std::size_t Schedule::critical_op(const ScheduleTimes& times) const {
  // The op after whose end nothing but compute follows until the iteration is over. Compute behind an op: the
  // forward of all layers from the one that needs it on.
  std::vector<Nanoseconds> behind(forward_.size() + 1, 0);
  for (std::size_t l = forward_.size(); l-- > 0;) behind[l] = behind[l + 1] + forward_[l];
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const std::size_t layer = ops_[i].needed_by;
    if (layer == kNobody) continue;
    if (times.end[i] + behind[layer == kIterationEnd ? 0 : layer] == times.iteration &&
        times.iteration > backward_total_ + behind[0]) {
      return i;
    }
  }
  return kNoOp;
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
