// US-Byte: blocks of unequal size in a near-optimal order, over backward and the next forward.
//
// Y. Gao et al., "US-Byte: An efficient communication framework for scheduling unequal-sized tensor blocks in
// distributed deep learning", TPDS 2024.
//   the paper            here
//   layer l, 1..L        unit, 0..: a tensor, or neighbouring tensors that are sent as one
//   a, b                 start-up and rate of the first link; costs are exact, a + ceil(b * bytes)
//   S_p                  SendOrder::block_elements, of each unit
//   P_1                  SendOrder::first_phase, its inverse: units by priority; P_2 is forward order
//                        (Theorem 1)
//   tau_b(l) + t_b(l)    SendUnit::ready
//   tau_ar(i)            SendOp::start; delta_1 is SendTimes::first_phase_ops
// First phase (Algorithm 1): whenever the link is free, the most urgent unit that is ready sends blocks until
// the next unit becomes ready: at least one block (case 1), else the fewest that last until then (case 2, Eq.
// 6), else all that it has (case 3). An op that follows one of the same unit without idle time is merged with
// it:
//   total = clamp(ceil((until - start - a) / (b S_p)), sent + 1, sent + remaining) blocks               (1)
// Second phase, all gradients being ready: the rest of each unit in forward order                       (2)
//   forward_start(l) = max(forward_end(l-1), end of all ops with blocks of l), t_iter = forward_end(L)  (3)
// which is
//   t_iter = max(T_f + T_b, max over ops i of end(i) + forward time of layer(i) and all after it)       (4)
// Algorithm 2 raises the priority of l, from L down, above all layers that become ready while l is being sent
// (Eq. 13), if that makes t_iter less; after that it continues at k - 1.
// Algorithm 3 is the plan: ops in this order, each kept until it is its turn.
//
// Deviations, corrections: Algorithm 1's block count after a merge is a total, but overwrites and is
// subtracted as if it were new, so blocks vanish: Eq. 1. Delta t is left out: true bytes are costed.
// Zero-size ops do not exist. Beyond the paper, where that is faster:
//   - blocks of a size of their own for each unit (option block_sizes);
//   - neighbouring tensors that are sent as one unit, and rests of several units in one op of the second
//     phase (option fusion). The second phase is then solved exactly: T is feasible iff every op ends before
//       T - (forward time of its first layer and all after it)                                          (5)
//     and taking as many units as an op's deadline allows uses the fewest ops, so T follows by bisection;
//   - S_p searched on a grid (the paper tunes it by Bayesian optimisation);
//   - several links: the plan for one link and priority slices of several sizes compete, with links by
//     links.cc;
//   - shared links: one op at a time competes with 2, 4, 8 and 16.
// Complexity: one evaluation O(ops * units / 64 + units log t); Algorithm 2 evaluates at most once a unit.
// The search stops after a budget of evaluated ops.
#include "schemes/us_byte/us_byte.h"

#include <algorithm>
#include <array>
#include <limits>

#include "schemes/merging.h"
#include "schemes/option_table.h"
#include "schemes/priority.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

constexpr std::array<std::int64_t, 8> kBlockBytes = {65536,    262144,   1048576,   4194304,
                                                     16777216, 67108864, 268435456, std::int64_t{1} << 53};
constexpr std::array<std::int64_t, 8> kUnitBytes = {0,       65536,    262144,   1048576,
                                                    4194304, 16777216, 67108864, 268435456};

// Neighbouring tensors, in backward order, while a unit holds less than `bytes`; 0: each alone.
std::vector<Message> units_of(const CostModel& model, std::int64_t bytes) {
  std::vector<Message> units;
  std::int64_t held = 0;
  for (const Slice& slice : tensors_in_backward_order(model)) {
    const auto kind = [&](const Slice& s) {
      return std::pair(model.index().tensors[s.tensor].dtype, model.has_given_time(s.tensor));
    };
    if (units.empty() || held >= bytes || kind(units.back().slices.front()) != kind(slice) ||
        model.has_given_time(slice.tensor)) {
      units.emplace_back();
      held = 0;
    }
    units.back().slices.push_back(slice);
    held += model.bytes(std::span(&slice, 1));
  }
  return units;
}

// Search over units, block sizes and priorities, for one link.
class UsByteSearch {
 public:
  UsByteSearch(const CostModel& model, const UsByteOptions& options) : model_(model), options_(options) {}

  UsByteSchedule run() {
    try_grid();
    if (best_.iteration > model_.index().compute_total) {
      if (options_.fusion) merge_neighbours();
      if (options_.block_sizes == BlockSizes::kPerTensor) vary_blocks();
      raise();
    }
    const UsByteModel units(model_, best_.groups);
    SendTimes times;
    units.run(best_.order, options_.fusion, times);
    return {units.scheduled(times), times.iteration, best_.block_bytes};
  }

 private:
  struct Candidate {
    std::vector<Message> groups;
    SendOrder order;
    std::int64_t block_bytes = 0;
    Nanoseconds iteration = std::numeric_limits<Nanoseconds>::max();
  };

  bool try_order(const UsByteModel& units, const std::vector<Message>& groups, const SendOrder& order,
                 std::int64_t block_bytes) {
    units.run(order, options_.fusion, times_);
    budget_ -= times_.steps;
    if (times_.iteration >= best_.iteration) return false;
    best_ = {groups, order, block_bytes, times_.iteration};
    return true;
  }

  void try_blocks(const std::vector<Message>& groups) {
    const UsByteModel units(model_, groups);
    if (options_.partition_bytes) {
      try_order(units, groups, units.sequential(*options_.partition_bytes), *options_.partition_bytes);
      return;
    }
    for (std::int64_t bytes : kBlockBytes) {
      try_order(units, groups, units.sequential(bytes), bytes);
      if (bytes >= model_.index().total_bytes) break;  // larger ones change nothing
    }
  }

  void try_grid() {
    std::size_t last_size = 0;
    for (std::int64_t bytes : kUnitBytes) {
      const std::vector<Message> groups = units_of(model_, bytes);
      if (groups.size() != last_size) try_blocks(groups);
      last_size = groups.size();
      if (!options_.fusion || model_.cluster().links[0].startup_ns == 0) return;
    }
    std::vector<Message> merged = merged_optimally(model_);
    const bool pure = std::ranges::all_of(merged, [&](const Message& group) {
      return std::ranges::none_of(group.slices,
                                  [&](const Slice& s) { return model_.has_given_time(s.tensor); });
    });
    if (pure) try_blocks(merged);
  }

  void merge_neighbours() {
    for (std::size_t g = 0; g + 1 < best_.groups.size() && budget_ > kForPriorities; ++g) {
      std::vector<Message> groups = best_.groups;
      std::vector<Slice>& into = groups[g].slices;
      const std::vector<Slice>& from = groups[g + 1].slices;
      const auto& tensors = model_.index().tensors;
      if (tensors[into[0].tensor].dtype != tensors[from[0].tensor].dtype ||
          model_.has_given_time(into[0].tensor) || model_.has_given_time(from[0].tensor)) {
        continue;
      }
      into.insert(into.end(), from.begin(), from.end());
      groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(g) + 1);
      const UsByteModel units(model_, groups);
      budget_ -= kStepsOfAModel * static_cast<std::int64_t>(groups.size());
      if (try_order(units, groups, units.sequential(best_.block_bytes), best_.block_bytes)) --g;
    }
  }

  void vary_blocks() {
    const std::vector<Message> groups = best_.groups;
    const UsByteModel units(model_, groups);
    for (std::size_t u = 0; u < groups.size(); ++u) {
      for (const auto& [times, by] : {std::pair{4, 1}, std::pair{1, 4}}) {
        if (budget_ <= kForPriorities) return;
        SendOrder order = best_.order;
        std::int64_t& block = order.block_elements[u];
        const std::int64_t scaled = std::clamp<std::int64_t>(
            std::min(block, units.units()[u].elements()) * times / by, 1, units.units()[u].elements());
        if (scaled == block) continue;
        block = scaled;
        try_order(units, groups, order, best_.block_bytes);
      }
    }
  }

  void raise() {
    const UsByteModel units(model_, best_.groups);
    budget_ = std::max(budget_, kForPriorities);
    best_.iteration = units.raise_priorities(best_.order, options_.fusion, budget_);
  }

  // SendTimes::steps: about 25 ms; Algorithm 2 over 320 tensors is about a third of it.
  static constexpr std::int64_t kStepsOfAModel = 8;  // what building a model costs for each unit
  static constexpr std::int64_t kBudget = 600'000;
  static constexpr std::int64_t kForPriorities = 200'000;

  const CostModel& model_;
  UsByteOptions options_;
  Candidate best_;
  SendTimes times_;
  std::int64_t budget_ = kBudget;
};

// What competes on several or shared links, `at_once` ops on each.
std::vector<ScheduledOp> best_on_links(const CostModel& model, const UsByteOptions& options,
                                       std::vector<ScheduledOp> for_one_link, std::int64_t at_once) {
  if (model.link_count() == 1 && !has_shared_link(model.cluster())) return for_one_link;
  std::vector<ScheduledOp> best = std::move(for_one_link);
  assign_links(model, best);
  Nanoseconds least = iteration_time(model, best);
  for (std::int64_t bytes : kBlockBytes) {
    if (options.partition_bytes) bytes = *options.partition_bytes;
    // No more than about 4000 slices: a start-up each.
    if (!options.partition_bytes && bytes < model.index().total_bytes / 4000) continue;
    const std::int64_t credit = 1 + std::min(bytes, model.index().total_bytes) * (at_once - 1);
    std::vector<ScheduledOp> slices =
        issue_by_priority(model, priority_slices(model, bytes, Partition::kEven), credit);
    const Nanoseconds time = iteration_time(model, slices);
    if (time < least) {
      least = time;
      best = std::move(slices);
    }
    if (options.partition_bytes || bytes >= model.index().total_bytes) break;
  }
  improve_links(model, best);
  return best;
}

PlanResult plan_us_byte(const Workload& workload, const Cluster& cluster, const UsByteOptions& options) {
  const CostModel alone(workload, with_concurrency_at_most(cluster, 1), options.compression);
  const UsByteSchedule schedule = solve_us_byte(alone, options);
  const std::vector<ScheduledOp> ops = best_on_links(alone, options, schedule.ops, 1);
  Plan plan = overlapped_plan(alone, ops);
  Nanoseconds least = iteration_time(alone, ops);
  for (std::int64_t at_once = 2; at_once <= 16 && has_shared_link(cluster); at_once *= 2) {
    const CostModel shared(workload, with_concurrency_at_most(cluster, at_once), options.compression);
    const std::vector<ScheduledOp> sharing = best_on_links(shared, options, schedule.ops, at_once);
    const Nanoseconds iteration = iteration_time(shared, sharing);
    if (iteration >= least) continue;
    least = iteration;
    plan = overlapped_plan(shared, sharing);
  }
  if (schedule.partition_bytes > 0)
    plan.options["partition_bytes"] = std::to_string(schedule.partition_bytes);
  return plan;
}

}  // namespace

UsByteSchedule solve_us_byte(const CostModel& model, const UsByteOptions& options) {
  if (model.index().tensors.empty()) return {.claim = model.index().compute_total};
  return UsByteSearch(model, options).run();
}

SchemeInfo us_byte_scheme() {
  return scheme_row<UsByteOptions>(
      {.name = "us_byte",
       .summary = "blocks of unequal size in near-optimal order",
       .paper = "US-Byte, TPDS 2024",
       .effect = Effect::kExact},
      {option(&UsByteOptions::partition_bytes, {.name = "partition_bytes",
                                                .unit = Unit::kBytes,
                                                .default_source = "searched from 64 KiB to whole tensors",
                                                .minimum = 1,
                                                .maximum = 0x1p53,
                                                .meaning = "basic block size S_p",
                                                .tuned = TunedRange{100'000, 100'000'000}}),
       option(&UsByteOptions::fusion, {.name = "fusion",
                                       .default_source = "beyond the paper; off is the paper",
                                       .meaning = "whether neighbouring small tensors share ops"}),
       option(&UsByteOptions::block_sizes,
              {{"per_tensor", BlockSizes::kPerTensor}, {"uniform", BlockSizes::kUniform}},
              {.name = "block_sizes",
               .default_source = "beyond the paper; uniform is the paper",
               .meaning = "whether tensors may have block sizes of their own"})},
      plan_us_byte);
}

}  // namespace gradweave
