#include "schemes/common.h"

#include <algorithm>
#include <limits>

#include "gradweave/error.h"
#include "schemes/schedule.h"

namespace gradweave {

Plan new_plan(const CostModel& model, std::size_t period) {
  constexpr std::size_t kMaxValues = 20'000'000;  // as many as a file may have that is read again
  if (period > kMaxValues / std::max<std::size_t>(model.index().tensors.size(), 1)) {
    throw InvalidInput("the plan would name more than " + std::to_string(kMaxValues) + " blocks, in " +
                           std::to_string(period) + " iterations",
                       "period", "use a shorter one, or fewer tensors");
  }
  Plan plan;
  for (const Link& link : model.cluster().links) plan.links.push_back({link.name, link.concurrency});
  plan.period.resize(period);
  return plan;
}

std::vector<std::int32_t> add_blocks(Plan& plan, const CostModel& model, std::span<const Slice> slices) {
  std::vector<std::int32_t> indices;
  indices.reserve(slices.size());
  for (const Slice& slice : slices) {
    indices.push_back(static_cast<std::int32_t>(plan.blocks.size()));
    plan.blocks.push_back({model.index().tensor_names[slice.tensor], slice.begin, slice.end});
  }
  return indices;
}

std::size_t last_ready_layer(const CostModel& model, std::span<const Slice> slices) {
  std::size_t layer = std::numeric_limits<std::size_t>::max();
  for (const Slice& slice : slices) layer = std::min(layer, model.index().tensors[slice.tensor].layer);
  return layer;
}

std::vector<Slice> whole_tensors(const CostModel& model) {
  std::vector<Slice> slices;
  for (std::size_t t = 0; t < model.index().tensors.size(); ++t)
    slices.push_back({t, 0, model.index().tensors[t].numel});
  return slices;
}

std::vector<Slice> tensors_in_backward_order(const CostModel& model) {
  std::vector<Slice> slices = whole_tensors(model);
  std::ranges::reverse(slices);
  return slices;
}

Cluster with_concurrency_at_most(const Cluster& cluster, std::int64_t ops) {
  Cluster limited = cluster;
  const auto most =
      static_cast<std::int32_t>(std::min<std::int64_t>(ops, std::numeric_limits<std::int32_t>::max()));
  for (Link& link : limited.links)
    link.concurrency = link.concurrency == 0 ? most : std::min(link.concurrency, most);
  return limited;
}

bool has_shared_link(const Cluster& cluster) {
  return std::ranges::any_of(cluster.links, [](const Link& link) { return link.concurrency != 1; });
}

Release release_when_ready(const CostModel& model, std::span<const Slice> slices, Nanoseconds delay) {
  const auto layer = static_cast<std::int32_t>(last_ready_layer(model, slices));
  return {{.kind = PointKind::kBackwardEnd, .layer = layer}, delay};
}

std::vector<Message> split_by_dtype(const CostModel& model, std::span<const Slice> slices) {
  const auto dtype = [&](const Slice& slice) { return model.index().tensors[slice.tensor].dtype; };
  std::vector<Message> messages;
  for (const Slice& slice : slices) {
    const auto same = std::ranges::find_if(
        messages, [&](const Message& message) { return dtype(message.slices.front()) == dtype(slice); });
    if (same != messages.end()) {
      same->slices.push_back(slice);
    } else {
      messages.push_back({{slice}});
    }
  }
  return messages;
}

OptionSpec seed_option() {
  return {.name = "seed",
          .default_source = "Gradweave",
          .minimum = 0,
          .maximum = 0x1p53,
          .meaning = "seed of the tuning's random candidates"};
}

Plan synchronous_plan(const CostModel& model, std::span<const Message> messages,
                      std::span<const Release> releases) {
  std::vector<ScheduledOp> ops = scheduled_when_ready(model, messages);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ops[i].ready_layer = static_cast<std::size_t>(releases[i].point.layer);
    ops[i].delay = releases[i].delay_ns;
  }
  assign_links(model, ops);
  return synchronous_plan(model, ops);
}

}  // namespace gradweave
