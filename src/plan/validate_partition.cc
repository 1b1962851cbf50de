// Rule 1: blocks partition every tensor.
#include <algorithm>
#include <tuple>

#include "model/text.h"
#include "plan/unrolled.h"

namespace gradweave {
namespace {

std::string name_of_block(const Plan& plan, std::size_t b) {
  return "blocks[" + std::to_string(b) + "] (" + shortened(plan.blocks[b].tensor) + "[" +
         std::to_string(plan.blocks[b].begin) + ":" + std::to_string(plan.blocks[b].end) + "])";
}

KnownBlock resolve(const Plan& plan, std::size_t b, const WorkloadIndex& index, Report& report) {
  const Block& block = plan.blocks[b];
  const std::optional<std::size_t> tensor = index.find_tensor(block.tensor);
  if (!tensor) {
    report.add(1, -1, "the workload has no such tensor", name_of_block(plan, b),
               "make the plan from this workload, or name one of its tensors");
    return {};
  }
  const TensorPlace& place = index.tensors[*tensor];
  if (block.begin < 0 || block.end > place.numel || block.begin >= block.end) {
    report.add(1, -1, "is not a slice of the tensor's " + std::to_string(place.numel) + " elements",
               name_of_block(plan, b), "give 0 <= begin < end <= " + std::to_string(place.numel));
    return {};
  }
  return {.known = true,
          .tensor = *tensor,
          .layer = static_cast<std::int32_t>(place.layer),
          .bytes = (block.end - block.begin) * size_of(place.dtype)};
}

void report_gap(const std::string& tensor, std::int64_t begin, std::int64_t end, Report& report) {
  report.add(1, -1, "elements [" + std::to_string(begin) + ":" + std::to_string(end) + ") are in no block",
             "blocks of tensor " + shortened(tensor), "add a block for them, or extend the one beside them");
}

}  // namespace

std::vector<KnownBlock> resolve_blocks(const Plan& plan, const WorkloadIndex& index, Report& report) {
  std::vector<KnownBlock> blocks(plan.blocks.size());
  std::vector<std::size_t> order;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    blocks[b] = resolve(plan, b, index, report);
    if (blocks[b].known) order.push_back(b);
  }
  std::ranges::sort(order, {},
                    [&](std::size_t b) { return std::tuple(blocks[b].tensor, plan.blocks[b].begin, b); });

  auto next = order.begin();
  for (std::size_t t = 0; t < index.tensors.size() && !report.full(); ++t) {
    std::int64_t covered = 0;
    std::size_t covering = 0;  // the block that reaches up to `covered`
    for (; next != order.end() && blocks[*next].tensor == t; ++next) {
      const Block& block = plan.blocks[*next];
      if (block.begin > covered) report_gap(index.tensor_names[t], covered, block.begin, report);
      if (block.begin < covered) {
        report.add(1, -1, "overlaps with " + name_of_block(plan, covering), name_of_block(plan, *next),
                   "let one end where the other begins");
      }
      if (block.end > covered) covering = *next;
      covered = std::max(covered, block.end);
    }
    if (covered < index.tensors[t].numel)
      report_gap(index.tensor_names[t], covered, index.tensors[t].numel, report);
  }
  return blocks;
}

}  // namespace gradweave
