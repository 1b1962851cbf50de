// Rule 1: blocks partition every tensor.
#include <algorithm>
#include <tuple>

#include "base/quoted.h"
#include "plan/rules.h"

namespace gradweave {
namespace {

std::string name_of_block(const Plan& plan, std::size_t b) {
  return "blocks[" + std::to_string(b) + "] (" + shortened(plan.blocks[b].tensor) + "[" +
         std::to_string(plan.blocks[b].begin) + ":" + std::to_string(plan.blocks[b].end) + "])";
}

void report_gap(const std::string& tensor, std::int64_t begin, std::int64_t end, Report& report) {
  report.add(1, -1, "elements [" + std::to_string(begin) + ":" + std::to_string(end) + ") are in no block",
             "blocks of tensor " + shortened(tensor), "add a block for them, or extend the one beside them");
}

}  // namespace

void check_partition(const ResolvedPlan& resolved, Report& report) {
  const Plan& plan = resolved.plan;
  const WorkloadIndex& index = resolved.index;
  const auto tensor_of = [&](std::size_t b) { return resolved.blocks[b].slice.tensor; };
  std::vector<std::size_t> order;
  for (std::size_t b = 0; b < resolved.blocks.size(); ++b) {
    if (resolved.blocks[b].known) order.push_back(b);
  }
  std::ranges::sort(order, {},
                    [&](std::size_t b) { return std::tuple(tensor_of(b), plan.blocks[b].begin, b); });

  auto next = order.begin();
  for (std::size_t t = 0; t < index.tensors.size() && !report.full(); ++t) {
    std::int64_t covered = 0;
    std::size_t covering = 0;  // the block that reaches up to `covered`
    for (; next != order.end() && tensor_of(*next) == t; ++next) {
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
}

}  // namespace gradweave
