// Algorithms 1 and 2 of US-Byte and its second phase; us_byte.cc has the equations and the deviations.
#include <algorithm>
#include <bit>
#include <limits>

#include "schemes/us_byte/us_byte.h"

namespace gradweave {
namespace {

// The units that wait to be sent, by priority.
class Waiting {
 public:
  explicit Waiting(std::size_t size) : words_((size + 63) / 64, 0) {}
  void insert(std::size_t rank) {
    words_[rank / 64] |= std::uint64_t{1} << (rank % 64);
    first_word_ = std::min(first_word_, rank / 64);
  }
  void erase(std::size_t rank) { words_[rank / 64] &= ~(std::uint64_t{1} << (rank % 64)); }
  // Returns the smallest rank, or kNoOp if there is none.
  std::size_t first() {
    while (first_word_ < words_.size() && words_[first_word_] == 0) ++first_word_;
    if (first_word_ == words_.size()) return kNoOp;
    return first_word_ * 64 + static_cast<std::size_t>(std::countr_zero(words_[first_word_]));
  }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t first_word_ = 0;  // no rank is in an earlier word
};

}  // namespace

UsByteModel::UsByteModel(const CostModel& model, const std::vector<Message>& groups) : model_(model) {
  const WorkloadIndex& index = model.index();
  for (std::size_t g = groups.size(); g-- > 0;) {
    SendUnit unit;
    unit.offsets.push_back(0);
    for (std::size_t i = groups[g].slices.size(); i-- > 0;) {
      const std::size_t tensor = groups[g].slices[i].tensor;
      unit.tensors.push_back(tensor);
      unit.offsets.push_back(unit.offsets.back() + index.tensors[tensor].numel);
    }
    const TensorPlace& first = index.tensors[unit.tensors.front()];
    unit.element_bytes = size_of(first.dtype);
    unit.given_time = model.has_given_time(unit.tensors.front());
    unit.ready = index.backward_end[first.layer] - index.forward_total;
    units_.push_back(std::move(unit));
  }
  for (std::size_t u = 0; u < units_.size(); ++u) {
    whole_cost_.push_back(cost(u, 0, units_[u].elements()));
    const Nanoseconds startup = units_[u].given_time ? 0 : model.cluster().links[0].startup_ns;
    units_[u].ns_per_element =
        static_cast<double>(whole_cost_[u] - startup) / static_cast<double>(units_[u].elements());
  }
  for (std::size_t u = units_.size(); u-- > 0;) by_ready_.push_back(u);
  behind_.assign(index.layer_count + 1, 0);
  for (std::size_t l = index.layer_count; l-- > 0;) {
    behind_[l] = behind_[l + 1] + index.forward_end[l] - index.forward_start[l];
  }
  compute_ = index.compute_total;
}

SendOrder UsByteModel::sequential(std::int64_t block_bytes) const {
  SendOrder order;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    order.first_phase.push_back(u);
    order.block_elements.push_back(std::max<std::int64_t>(1, block_bytes / units_[u].element_bytes));
  }
  return order;
}

Nanoseconds UsByteModel::cost(std::size_t u, std::int64_t begin, std::int64_t end) const {
  const SendUnit& unit = units_[u];
  MessageLoad load;
  if (!unit.given_time) {
    load = {.elements = end - begin, .bytes = (end - begin) * unit.element_bytes};
    return model_.all_reduce_of(0, load).total();
  }
  for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
    const std::int64_t first = std::max(begin, unit.offsets[i]);
    const std::int64_t past = std::min(end, unit.offsets[i + 1]);
    const Slice slice{unit.tensors[i], first - unit.offsets[i], past - unit.offsets[i]};
    if (first < past) load = load + model_.load(0, std::span(&slice, 1));
  }
  return model_.all_reduce_of(0, load).total();
}

// The least end of an op that starts at `start` with element `begin`, covers `at_least` elements' end, ends
// on a block boundary (or with the unit) and does not end before `until`; the unit's end if there is none.
std::int64_t UsByteModel::fill_until(std::size_t u, std::int64_t begin, std::int64_t at_least,
                                     std::int64_t block, Nanoseconds start, Nanoseconds until) const {
  const std::int64_t elements = units_[u].elements();
  const auto boundary = [&](std::int64_t element) {
    return element > elements - block ? elements : (element + block - 1) / block * block;
  };
  const std::int64_t least = boundary(at_least);
  const auto ends_at = [&](std::int64_t end) { return start + cost(u, begin, end); };
  if (ends_at(least) >= until) return least;       // Case 1
  if (ends_at(elements) < until) return elements;  // Case 3
  // Case 2: a guess from the linear cost, put right by the exact one.
  const double room = static_cast<double>(until - ends_at(least)) / std::max(units_[u].ns_per_element, 1e-9);
  std::int64_t end =
      boundary(least + static_cast<std::int64_t>(std::min(room, static_cast<double>(elements - least))));
  while (end < elements && ends_at(end) < until) end = boundary(end + 1);
  while (end > least) {
    const std::int64_t shorter = (end - 1) / block * block;
    if (shorter < least || ends_at(shorter) < until) break;
    end = shorter;
  }
  return end;
}

void UsByteModel::run(const SendOrder& order, bool fuse, SendTimes& times) const {
  times.ops.clear();
  times.parts.clear();
  const std::size_t count = units_.size();
  std::vector<std::size_t> rank(count);
  for (std::size_t r = 0; r < count; ++r) rank[order.first_phase[r]] = r;
  std::vector<std::int64_t> sent(count, 0);
  Waiting waiting(count);
  std::size_t arrived = 0;  // of by_ready_
  Nanoseconds now = 0;
  while (true) {
    while (arrived < count && units_[by_ready_[arrived]].ready <= now)
      waiting.insert(rank[by_ready_[arrived++]]);
    if (arrived == count) break;
    const Nanoseconds until = units_[by_ready_[arrived]].ready;
    const std::size_t first = waiting.first();
    if (first == kNoOp) {
      now = until;
      continue;
    }
    const std::size_t u = order.first_phase[first];
    // An op that follows one of the same unit at once is merged with it.
    const bool merge = !times.ops.empty() && times.parts.back().unit == u && times.ops.back().end == now;
    if (!merge) {
      times.ops.push_back({times.parts.size(), times.parts.size() + 1, now, now});
      times.parts.push_back({u, sent[u], sent[u]});
    }
    SendOp& op = times.ops.back();
    SendPart& part = times.parts.back();
    part.end = fill_until(u, part.begin, part.end + 1, order.block_elements[u], op.start, until);
    op.end = now = op.start + cost(u, part.begin, part.end);
    sent[u] = part.end;
    if (part.end == units_[u].elements()) waiting.erase(first);
  }
  times.first_phase_ops = times.ops.size();
  times.steps = static_cast<std::int64_t>(2 * count + times.ops.size());
  std::vector<Rest> rests;
  for (std::size_t u = 0; u < count; ++u) {
    if (sent[u] < units_[u].elements()) rests.push_back({u, sent[u]});
  }
  // Theorem 1: the second phase is sequential. Its first op joins the last one of the first phase if that is
  // the same unit's.
  if (!rests.empty() && !times.ops.empty() && times.parts.back().unit == rests.front().unit &&
      times.ops.back().end == now) {
    times.parts.back().end = units_[rests.front().unit].elements();
    now = times.ops.back().end =
        times.ops.back().start + cost(rests.front().unit, times.parts.back().begin, times.parts.back().end);
    rests.erase(rests.begin());
  }
  const Nanoseconds before = finish(times);
  const std::size_t ops = times.ops.size();
  const std::size_t parts = times.parts.size();
  times.iteration = send_rests(rests, now, std::numeric_limits<Nanoseconds>::max(), false, times);
  if (!fuse || rests.size() < 2 || model_.cluster().links[0].startup_ns == 0 || times.iteration <= before)
    return;
  // Eq. 5: the least T for which deadlines T - behind(l) can be met, by bisection; the longest group that
  // meets its first layer's deadline is always a best one.
  std::int64_t steps = times.steps;
  Nanoseconds infeasible = before - 1;  // nothing can be over earlier
  Nanoseconds feasible = times.iteration;
  SendTimes best = times;
  while (feasible - infeasible > 1) {
    const Nanoseconds middle = infeasible + (feasible - infeasible) / 2;
    times.ops.resize(ops);
    times.parts.resize(parts);
    const Nanoseconds reached = send_rests(rests, now, middle, true, times);
    steps += static_cast<std::int64_t>(times.parts.size());
    if (reached <= middle) {
      feasible = reached;
      best = times;
      best.iteration = reached;
    } else {
      infeasible = middle;
    }
  }
  times = std::move(best);
  times.steps = steps;
}

bool UsByteModel::may_share(std::size_t unit, std::size_t next) const {
  return !units_[unit].given_time && !units_[next].given_time &&
         model_.index().tensors[units_[unit].tensors[0]].dtype ==
             model_.index().tensors[units_[next].tensors[0]].dtype;
}

// Sends the rests in order. With `fuse`, an op takes as many of them as still end before the deadline of its
// first: so that `deadline` for the iteration holds. Returns the iteration, or kNever as soon as a deadline
// is missed.
Nanoseconds UsByteModel::send_rests(const std::vector<Rest>& rests, Nanoseconds start, Nanoseconds deadline,
                                    bool fuse, SendTimes& times) const {
  Nanoseconds now = start;
  for (std::size_t i = 0; i < rests.size();) {
    const std::size_t first_part = times.parts.size();
    const SendPart first{rests[i].unit, rests[i].begin, units_[rests[i].unit].elements()};
    const Nanoseconds latest = deadline - behind_[layer_of(first)];
    times.parts.push_back(first);
    std::int64_t elements = first.end - first.begin;
    Nanoseconds end = now + cost(first.unit, first.begin, first.end);
    if (end > latest) return std::numeric_limits<Nanoseconds>::max();
    for (++i; fuse && i < rests.size() && may_share(first.unit, rests[i].unit); ++i) {
      const SendPart part{rests[i].unit, rests[i].begin, units_[rests[i].unit].elements()};
      const std::int64_t more = elements + part.end - part.begin;
      const MessageLoad load{.elements = more, .bytes = more * units_[part.unit].element_bytes};
      const Nanoseconds later = now + model_.all_reduce_of(0, load).total();
      if (later > latest) break;
      elements = more;
      end = later;
      times.parts.push_back(part);
    }
    times.ops.push_back({first_part, times.parts.size(), now, end});
    now = end;
  }
  return finish(times);
}

std::size_t UsByteModel::layer_of(const SendPart& part) const {
  const SendUnit& unit = units_[part.unit];
  const auto past = std::ranges::upper_bound(unit.offsets, part.begin);
  const std::size_t tensor = unit.tensors[static_cast<std::size_t>(past - unit.offsets.begin()) - 1];
  return model_.index().tensors[tensor].layer;
}

// Eqs. 11 and 12 without the recurrence: an op's first layer starts after it, and all forward from there on
// follows.
Nanoseconds UsByteModel::finish(const SendTimes& times) const {
  Nanoseconds iteration = compute_;
  for (const SendOp& op : times.ops) {
    iteration = std::max(iteration, op.end + behind_[layer_of(times.parts[op.first_part])]);
  }
  return iteration;
}

Nanoseconds UsByteModel::raise_priorities(SendOrder& order, bool fuse, std::int64_t& budget) const {
  const std::size_t count = units_.size();
  SendTimes times;
  run(order, fuse, times);
  for (std::size_t u = count; u-- > 0;) {
    // When u would be over if nothing interrupted it from its first op on.
    const auto first_op = std::find_if(
        times.ops.begin(), times.ops.begin() + static_cast<std::ptrdiff_t>(times.first_phase_ops),
        [&](const SendOp& op) { return times.parts[op.first_part].unit == u; });
    if (first_op == times.ops.begin() + static_cast<std::ptrdiff_t>(times.first_phase_ops)) continue;
    const Nanoseconds over = first_op->start + whole_cost(u);
    // Eq. 13: k is the last unit to become ready before that.
    std::size_t k = u;
    while (k > 0 && units_[k - 1].ready < over) --k;
    if (k == u) continue;
    if (budget < 0) break;
    SendOrder raised = order;
    const auto from = std::ranges::find(raised.first_phase, u);
    const auto to = std::ranges::find(raised.first_phase, k);
    if (to >= from) continue;
    std::rotate(to, from, from + 1);
    SendTimes raised_times;
    run(raised, fuse, raised_times);
    budget -= raised_times.steps;
    if (raised_times.iteration >= times.iteration) continue;
    order = std::move(raised);
    times = std::move(raised_times);
    u = k;  // continues at k - 1: raised intervals stay disjoint
  }
  return times.iteration;
}

std::vector<ScheduledOp> UsByteModel::scheduled(const SendTimes& times) const {
  std::vector<ScheduledOp> ops;
  for (const SendOp& op : times.ops) {
    ScheduledOp scheduled;
    for (std::size_t p = op.first_part; p < op.past_part; ++p) {
      const SendPart& part = times.parts[p];
      const SendUnit& unit = units_[part.unit];
      for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
        const std::int64_t first = std::max(part.begin, unit.offsets[i]);
        const std::int64_t past = std::min(part.end, unit.offsets[i + 1]);
        if (first < past)
          scheduled.slices.push_back({unit.tensors[i], first - unit.offsets[i], past - unit.offsets[i]});
      }
    }
    scheduled.ready_layer = scheduled.needed_by = last_ready_layer(model_, scheduled.slices);
    ops.push_back(std::move(scheduled));
  }
  return ops;
}

}  // namespace gradweave
