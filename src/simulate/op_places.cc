#include "simulate/op_places.h"

#include <algorithm>
#include <tuple>

namespace gradweave {

OpPlaces::OpPlaces(const CompiledPlan& plan, const Program& program) : plan_(plan), program_(program) {
  std::vector<std::int32_t> count(program.link_count());
  for (std::int64_t n = 0; n < program.head + program.period; ++n) {
    first_.push_back(positions_.size());
    std::ranges::fill(count, 0);
    for (const ResolvedOp& op : plan.iteration(n).ops)
      positions_.push_back(exists(op.merges, n) ? count[static_cast<std::size_t>(op.link)]++ : -1);
  }
}

const std::vector<OpPlace>& OpPlaces::delivering(std::int64_t n, std::size_t k) {
  found_.clear();
  for (const Delivery& delivery : plan_.deliveries(n, k)) add(n, delivery.op);
  return last_of_each_link();
}

const std::vector<OpPlace>& OpPlaces::before(std::int64_t n, std::size_t k) {
  found_.clear();
  for (const OpRef op : plan_.steps_before(n, k)) add(n, op);
  return last_of_each_link();
}

// Blocks that travel together come one after another.
void OpPlaces::add(std::int64_t n, OpRef op) {
  if (!found_.empty() && op == last_) return;
  last_ = op;
  const auto item = static_cast<std::size_t>(op.op);
  const std::int64_t iteration = n + op.delta;
  found_.push_back({op.delta, plan_.iteration(iteration).ops[item].link,
                    positions_[first_[program_.code_of(iteration)] + item]});
}

const std::vector<OpPlace>& OpPlaces::last_of_each_link() {
  std::ranges::sort(found_, {},
                    [](const OpPlace& op) { return std::tuple(op.link, -op.iteration, -op.position); });
  const auto implied = [&](const OpPlace& kept, const OpPlace& op) {
    return kept.link == op.link &&
           (program_.concurrency[static_cast<std::size_t>(op.link)] == 1 || kept == op);
  };
  const auto rest = std::ranges::unique(found_, implied);
  found_.erase(rest.begin(), rest.end());
  return found_;
}

}  // namespace gradweave
