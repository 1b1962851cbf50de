// Rule 3: what is reduced in steps has every step, once, one after another, over the same ordered blocks and the same
// iterations. A reduce_scatter has an all_gather; of two levels a reduce_scatter and an all_gather inside nodes have the
// reduction between nodes between them.
#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "plan/rules.h"

namespace gradweave {
namespace {

// What the steps of a reduction have in common: payload, number of the block list, iterations met.
using Key = std::tuple<Payload, std::int32_t, std::vector<std::int64_t>>;

// Numbers of ops, in the order of the list.
struct Pairs {
  std::vector<std::int64_t> scatters, gathers;
};

struct Steps {
  std::array<Pairs, 3> halves;        // by level
  std::vector<std::int64_t> between;  // whole reductions between nodes
  Pairs& at(Level level) { return halves[static_cast<std::size_t>(level)]; }
  const Pairs& at(Level level) const { return halves[static_cast<std::size_t>(level)]; }
};

class StepCheck {
 public:
  StepCheck(const CompiledPlan& compiled, Report& report)
      : compiled_(compiled), report_(report), reported_(compiled.slots.size()) {}

  void check(const Steps& steps) {
    std::ranges::for_each(steps.halves, [&](const Pairs& halves) { check(halves); });
    check_nesting(steps);
  }

 private:
  // An op of the plan is reported once, whatever number of iterations shows its fault.
  void fault(std::int64_t number, const std::string& what, const std::string& remedy) {
    const CompiledPlan::Place place = compiled_.op_place(number);
    const std::size_t slot = compiled_.slot_of(place.iteration);
    reported_[slot].resize(compiled_.slots[slot].ops.size());
    if (reported_[slot][place.item]) return;
    reported_[slot][place.item] = true;
    report_.add(3, static_cast<std::int64_t>(slot), what, compiled_.op_name(number), remedy);
  }

  void check(const Pairs& halves) {
    for (const std::int64_t scatter : halves.scatters) {
      if (halves.gathers.empty()) {
        fault(scatter, "no all_gather has its blocks and merges",
              "add an all_gather of the same blocks, in the same order");
      } else if (halves.gathers.front() < scatter) {
        fault(halves.gathers.front(), "comes before its reduce_scatter " + compiled_.op_name(scatter),
              "list it later");
      }
    }
    for (std::size_t i = halves.scatters.empty() ? 0 : 1; i < halves.gathers.size(); ++i) {
      fault(halves.gathers[i],
            halves.scatters.empty() ? "no reduce_scatter has its blocks and merges"
                                    : "gathers again what is gathered",
            "remove it, or make it match its reduce_scatter");
    }
  }

  void check_nesting(const Steps& steps) {
    const Pairs& inside = steps.at(Level::kInside);
    const Pairs& apart = steps.at(Level::kBetween);
    std::vector<std::int64_t> between = steps.between;
    between.insert(between.end(), apart.scatters.begin(), apart.scatters.end());
    std::ranges::sort(between);
    if (between.empty()) {
      for (const std::int64_t scatter : inside.scatters) {
        fault(scatter, "no op between nodes has its blocks and merges: nodes would diverge",
              "add one of the same blocks, in the same order, before its all_gather");
      }
      return;
    }
    for (std::size_t i = inside.scatters.empty() ? 0 : 1; i < between.size(); ++i) {
      fault(between[i],
            inside.scatters.empty() ? "no reduce_scatter inside nodes has its blocks and merges"
                                    : "reduces again between nodes what is reduced",
            inside.scatters.empty() ? "add one before it, and an all_gather inside nodes after it"
                                    : "remove it");
    }
    if (inside.scatters.empty()) return;
    if (between.front() < inside.scatters.front()) {
      fault(between.front(),
            "comes before its reduce_scatter inside nodes, " + compiled_.op_name(inside.scatters.front()),
            "list it later");
    }
    const std::int64_t last = apart.gathers.empty() ? between.front() : apart.gathers.front();
    if (!inside.gathers.empty() && inside.gathers.front() < last) {
      fault(inside.gathers.front(), "comes before its op between nodes, " + compiled_.op_name(last),
            "list it later");
    }
  }

  const CompiledPlan& compiled_;
  Report& report_;
  std::vector<std::vector<bool>> reported_;
};

}  // namespace

void check_pairs(const CompiledPlan& compiled, Report& report) {
  std::map<std::vector<std::int32_t>, std::int32_t> list_numbers;
  std::map<Key, Steps> reductions;
  for (std::int64_t n = 0; n < compiled.horizon; ++n) {
    const std::vector<ResolvedOp>& ops = compiled.iteration(n).ops;
    for (std::size_t k = 0; k < ops.size(); ++k) {
      const std::int64_t number = compiled.op_number(n, k);
      const ResolvedOp& op = ops[k];
      const bool half = is_half(op.op->collective);
      if (!half && op.level != Level::kBetween) continue;
      std::vector<std::int64_t> met;
      for (const std::int32_t m : op.merges) {
        if (n + m >= 0) met.push_back(n + m);
      }
      if (met.empty()) continue;
      const auto next = static_cast<std::int32_t>(list_numbers.size());
      const std::int32_t list = list_numbers.emplace(op.op->blocks, next).first->second;
      Steps& steps = reductions[Key(op.op->payload, list, std::move(met))];
      Pairs& halves = steps.at(op.level);
      (!half ? steps.between : op.gathers() ? halves.gathers : halves.scatters).push_back(number);
    }
  }
  StepCheck check(compiled, report);
  for (const auto& [key, steps] : reductions) {
    if (std::get<2>(key).back() >= compiled.checked) continue;  // its partner may lie beyond the horizon
    check.check(steps);
    if (report.full()) break;
  }
}

}  // namespace gradweave
