#include "schemes/dreamddp/after_step.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "schemes/common.h"
#include "solve/slots.h"

namespace gradweave {
namespace {

// A layer's tensors of one dtype.
struct Group {
  std::size_t layer = 0;
  DType dtype{};
  std::vector<Slice> slices;
  std::vector<MessageLoad> loads;  // per link
};

struct Sent {
  std::size_t link = 0;
  std::vector<Slice> slices;
};

std::vector<Group> groups_of_layer(const CostModel& model, std::size_t layer) {
  const WorkloadIndex& index = model.index();
  std::vector<Group> groups;
  for (std::size_t t = index.first_tensor[layer]; t < index.first_tensor[layer + 1]; ++t) {
    auto group = std::ranges::find(groups, index.tensors[t].dtype, &Group::dtype);
    if (group == groups.end())
      group = groups.insert(group, {.layer = layer, .dtype = index.tensors[t].dtype});
    group->slices.push_back({t, 0, index.tensors[t].numel});
  }
  for (Group& group : groups) {
    for (std::size_t k = 0; k < model.link_count(); ++k) group.loads.push_back(model.load(k, group.slices));
  }
  return groups;
}

std::vector<std::vector<Group>> parts_of(const CostModel& model, std::size_t period) {
  std::vector<std::vector<Group>> parts(period);
  std::vector<std::int64_t> bytes(period, 0);
  for (std::size_t l = 0; l < model.index().layer_count; ++l) {
    const auto least = std::ranges::min_element(bytes);
    std::vector<Group>& part = parts[static_cast<std::size_t>(least - bytes.begin())];
    for (Group& group : groups_of_layer(model, l)) {
      *least += model.bytes(group.slices);
      part.push_back(std::move(group));
    }
  }
  return parts;
}

// Returns the messages of a part whose stall is at most `stall`, or nothing.
std::optional<std::vector<Sent>> sent_within(const CostModel& model, const std::vector<Group>& part,
                                             Nanoseconds stall) {
  std::vector<Nanoseconds> free(model.link_count(), 0);
  std::vector<Sent> sent;
  for (auto first = part.begin(); first != part.end();) {
    const auto end = [&](std::size_t link, const MessageLoad& load) {
      return free[link] + model.all_reduce_of(link, load).total();
    };
    std::size_t link = 0;
    for (std::size_t k = 1; k < free.size(); ++k) {
      if (end(k, first->loads[k]) < end(link, first->loads[link])) link = k;
    }
    const Nanoseconds latest = stall + model.index().forward_start[first->layer];
    Sent message{.link = link, .slices = {}};
    MessageLoad load;
    auto next = first;
    for (; next != part.end() && next->dtype == first->dtype; ++next) {
      const MessageLoad longer = load + next->loads[link];
      if (end(link, longer) > latest) break;
      load = longer;
      message.slices.insert(message.slices.end(), next->slices.begin(), next->slices.end());
    }
    if (next == first) return std::nullopt;
    free[link] = end(link, load);
    sent.push_back(std::move(message));
    first = next;
  }
  return sent;
}

}  // namespace

PlanWithStall plan_after_step(const CostModel& model, std::size_t period) {
  PlanWithStall result{.plan = new_plan(model, period)};
  Plan& plan = result.plan;
  const std::vector<std::int32_t> all = add_blocks(plan, model, whole_tensors(model));  // block t is tensor t
  if (all.empty()) return result;
  const Point end{.kind = PointKind::kIterationEnd};
  for (Iteration& iteration : plan.period)
    iteration.applies.push_back({.at = end, .blocks = all, .merges = {0}, .source = Source::kLocalGradient});
  const std::vector<std::vector<Group>> parts = parts_of(model, period);
  for (std::size_t h = 0; h < period; ++h) {
    const auto fits = [&](Nanoseconds stall) { return sent_within(model, parts[h], stall).has_value(); };
    const Nanoseconds stall = least_time(time_that_fits(1, fits), 0, fits);
    result.stall += stall;
    const std::vector<Sent> messages = *sent_within(model, parts[h], stall);
    for (const Sent& message : messages) {
      Op op{.link = plan.links[message.link].name,
            .payload = Payload::kParameter,
            .merges = {0},
            .release = {end}};
      for (const Slice& slice : message.slices) op.blocks.push_back(all[slice.tensor]);
      plan.period[h].ops.push_back(std::move(op));
    }
    for (const Group& group : parts[h]) {
      Apply apply{.at = {.kind = PointKind::kForwardStart, .layer = static_cast<std::int32_t>(group.layer)},
                  .merges = {-1},
                  .source = Source::kAveragedParameter};
      for (const Slice& slice : group.slices) apply.blocks.push_back(all[slice.tensor]);
      plan.period[(h + 1) % period].applies.push_back(std::move(apply));
    }
  }
  return result;
}

}  // namespace gradweave
