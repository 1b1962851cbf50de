#include "gradweave/plan.h"

#include "gradweave/workload.h"

namespace gradweave {

bool has_levels(const Plan& plan) { return !plan.links.empty() && plan.links.front().level != Level::kAll; }

MadeBy made_by(const Plan& plan) {
  if (plan.search_report && !plan.search_report->chosen.scheme.empty())
    return {plan.search_report->chosen.scheme, plan.search_report->chosen.options};
  return {plan.scheme, plan.options};
}

bool do_the_same(const Plan& first, const Plan& second) {
  Plan plan = first;
  plan.scheme = second.scheme;
  plan.options = second.options;
  plan.search_report = second.search_report;
  return plan == second;
}

const Iteration& iteration_at(const Plan& plan, std::int64_t n) {
  const auto prologue = static_cast<std::int64_t>(plan.prologue.size());
  if (n < prologue) return plan.prologue[static_cast<std::size_t>(n)];
  return plan
      .period[static_cast<std::size_t>((n - prologue) % static_cast<std::int64_t>(plan.period.size()))];
}

std::string label_of(const Plan& plan, const Op& op, const WorkloadIndex& index) {
  const bool average = op.payload == Payload::kParameter && !is_half(op.collective);
  std::string label(average ? "average" : name_of(op.collective));
  if (!op.compression.name.empty()) label.append(" ").append(op.compression.name);
  if (op.blocks.empty()) return label;
  const Block& block = plan.blocks[static_cast<std::size_t>(op.blocks.front())];
  label.append(" ").append(block.tensor);
  if (block.begin != 0 || block.end != index.tensors[*index.find_tensor(block.tensor)].numel) {
    label.append("[" + std::to_string(block.begin) + ":" + std::to_string(block.end) + "]");
  }
  if (op.blocks.size() > 1) label.append(" +" + std::to_string(op.blocks.size() - 1));
  return label;
}

}  // namespace gradweave
