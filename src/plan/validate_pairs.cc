// Rule 3: every reduce_scatter has exactly one all_gather of the same ordered blocks and the same iterations,
// later.
#include <map>
#include <tuple>

#include "plan/rules.h"

namespace gradweave {
namespace {

// What a reduce_scatter and its all_gather have in common: payload, number of the block list, iterations met.
using Key = std::tuple<Payload, std::int32_t, std::vector<std::int64_t>>;

struct Pair {
  std::vector<std::int64_t> scatters, gathers;  // numbers of ops, in the order of the list
};

}  // namespace

void check_pairs(const CompiledPlan& compiled, Report& report) {
  std::map<std::vector<std::int32_t>, std::int32_t> list_numbers;
  std::map<Key, Pair> pairs;
  for (std::int64_t n = 0; n < compiled.horizon; ++n) {
    const std::vector<ResolvedOp>& ops = compiled.iteration(n).ops;
    for (std::size_t k = 0; k < ops.size(); ++k) {
      const std::int64_t number = compiled.op_number(n, k);
      const ResolvedOp& op = ops[k];
      if (op.op->collective != Collective::kReduceScatter && !op.gathers()) continue;
      std::vector<std::int64_t> met;
      for (const std::int32_t m : op.merges) {
        if (n + m >= 0) met.push_back(n + m);
      }
      if (met.empty()) continue;
      const auto next = static_cast<std::int32_t>(list_numbers.size());
      const std::int32_t list = list_numbers.emplace(op.op->blocks, next).first->second;
      Pair& pair = pairs[Key(op.op->payload, list, std::move(met))];
      (op.gathers() ? pair.gathers : pair.scatters).push_back(number);
    }
  }

  // An op of the plan is reported once, whatever number of iterations shows its fault.
  std::vector<std::vector<bool>> reported(compiled.slots.size());
  const auto fault = [&](std::int64_t number, const std::string& what, const std::string& remedy) {
    const CompiledPlan::Place place = compiled.op_place(number);
    const std::size_t slot = compiled.slot_of(place.iteration);
    reported[slot].resize(compiled.slots[slot].ops.size());
    if (reported[slot][place.item]) return;
    reported[slot][place.item] = true;
    report.add(3, static_cast<std::int64_t>(slot), what, compiled.op_name(number), remedy);
  };
  for (const auto& [key, pair] : pairs) {
    if (std::get<2>(key).back() >= compiled.checked) continue;  // its partner may lie beyond the horizon
    for (const std::int64_t scatter : pair.scatters) {
      if (pair.gathers.empty()) {
        fault(scatter, "no all_gather has its blocks and merges",
              "add an all_gather of the same blocks, in the same order");
      } else if (pair.gathers.front() < scatter) {
        fault(pair.gathers.front(), "comes before its reduce_scatter " + compiled.op_name(scatter),
              "list it later");
      }
    }
    for (std::size_t i = pair.scatters.empty() ? 0 : 1; i < pair.gathers.size(); ++i) {
      fault(pair.gathers[i],
            pair.scatters.empty() ? "no reduce_scatter has its blocks and merges"
                                  : "gathers again what is gathered",
            "remove it, or make it match its reduce_scatter");
    }
    if (report.full()) break;
  }
}

}  // namespace gradweave
