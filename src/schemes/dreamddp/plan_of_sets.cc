#include "schemes/dreamddp/plan_of_sets.h"

#include <algorithm>

#include "schemes/common.h"

namespace gradweave {
namespace {

// Blocks are whole tensors; block t is tensor t.
std::vector<std::int32_t> blocks_of_layer(const CostModel& model, std::size_t layer) {
  std::vector<std::int32_t> blocks;
  for (std::size_t t = model.index().first_tensor[layer]; t < model.index().first_tensor[layer + 1]; ++t) {
    blocks.push_back(static_cast<std::int32_t>(t));
  }
  return blocks;
}

void add_local_steps(Iteration& iteration, const CostModel& model, const std::vector<std::size_t>& sent) {
  Apply others{.at = {.kind = PointKind::kIterationEnd}, .merges = {0}, .source = Source::kLocalGradient};
  for (std::size_t l = model.index().layer_count; l-- > 0;) {
    const std::vector<std::int32_t> blocks = blocks_of_layer(model, l);
    if (blocks.empty()) continue;
    if (std::ranges::find(sent, l) == sent.end()) {
      others.blocks.insert(others.blocks.end(), blocks.begin(), blocks.end());
    } else {
      const Point point{.kind = PointKind::kBackwardEnd, .layer = static_cast<std::int32_t>(l)};
      iteration.applies.push_back(
          {.at = point, .blocks = blocks, .merges = {0}, .source = Source::kLocalGradient});
    }
  }
  std::ranges::sort(others.blocks);
  if (!others.blocks.empty()) iteration.applies.push_back(std::move(others));
}

void add_ops(Iteration& iteration, const Plan& plan, const Packer& packer,
             const std::vector<std::size_t>& set) {
  for (const Packer::Packed& packed : packer.pack(set)) {
    const Point point{.kind = PointKind::kBackwardEnd,
                      .layer = static_cast<std::int32_t>(packer.layer(packed.last))};
    Op op{.link = plan.links[packed.link].name,
          .payload = Payload::kParameter,
          .merges = {0},
          .release = {point}};
    for (const Slice& slice : packed.message.slices)
      op.blocks.push_back(static_cast<std::int32_t>(slice.tensor));
    iteration.ops.push_back(std::move(op));
  }
}

}  // namespace

OptionSpec period_option() {
  return {.name = "period",
          .unit = Unit::kIterations,
          .default_source = "DreamDDP, Sections 4.5 and 4.6: H = 5",
          .minimum = 1,
          .maximum = 1000,
          .meaning = "H: every parameter is averaged at least once in this many iterations"};
}

Plan plan_of_sets(const CostModel& model, const Packer& packer, const Assignment& assignment,
                  bool forward_overlap) {
  const std::size_t period = assignment.sets.size();
  Plan plan = new_plan(model, period);
  add_blocks(plan, model, whole_tensors(model));
  for (std::size_t h = 0; h < period; ++h) {
    const std::vector<std::size_t>& set = assignment.sets[h];
    std::vector<std::size_t> layers;
    layers.reserve(set.size());
    for (std::size_t position : set) layers.push_back(packer.layer(position));
    add_local_steps(plan.period[h], model, layers);
    add_ops(plan.period[h], plan, packer, set);
  }
  for (std::size_t h = 0; h < period; ++h) {
    Apply at_end{
        .at = {.kind = PointKind::kIterationEnd}, .merges = {0}, .source = Source::kAveragedParameter};
    for (std::size_t position : assignment.sets[h]) {
      const std::vector<std::int32_t> blocks = blocks_of_layer(model, packer.layer(position));
      if (forward_overlap) {
        const Point point{.kind = PointKind::kForwardStart,
                          .layer = static_cast<std::int32_t>(packer.layer(position))};
        plan.period[(h + 1) % period].applies.push_back(
            {.at = point, .blocks = blocks, .merges = {-1}, .source = Source::kAveragedParameter});
      } else {
        at_end.blocks.insert(at_end.blocks.end(), blocks.begin(), blocks.end());
      }
    }
    if (!at_end.blocks.empty()) plan.period[h].applies.push_back(std::move(at_end));
  }
  return plan;
}

}  // namespace gradweave
