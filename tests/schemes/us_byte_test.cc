#include "schemes/us_byte.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "gradweave/simulate.h"
#include "simulate/table2.h"

namespace gradweave {
namespace {

struct Instance {
  Workload workload;
  Cluster cluster;
};

Instance random_instance(std::mt19937_64& random, std::size_t layers) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  Instance instance{{.name = "w"},
                    {.workers = 4, .links = {{"net", below(2) * below(4000), {1 + below(30), 4}}}}};
  for (std::size_t l = 0; l < layers; ++l) {
    Layer layer{"l" + std::to_string(l), below(3000), below(6000), std::nullopt, {}};
    const std::int64_t tensors = 1 + below(2);
    for (std::int64_t t = 0; t < tensors; ++t) {
      layer.tensors.push_back(
          {layer.name + "." + std::to_string(t), 1 + (below(3) == 0 ? below(2'000'000) : below(20'000))});
    }
    instance.workload.layers.push_back(std::move(layer));
  }
  return instance;
}

std::vector<Message> one_tensor_each(const CostModel& model) {
  std::vector<Message> groups;
  for (const Slice& slice : tensors_in_backward_order(model)) groups.push_back({{slice}});
  return groups;
}

void expect_every_element_once(const CostModel& model, const std::vector<ScheduledOp>& ops) {
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> covered(model.index().tensors.size());
  for (const ScheduledOp& op : ops) {
    for (const Slice& slice : op.slices) covered[slice.tensor].push_back({slice.begin, slice.end});
  }
  for (std::size_t t = 0; t < covered.size(); ++t) {
    std::ranges::sort(covered[t]);
    std::int64_t next = 0;
    for (const auto& [begin, end] : covered[t]) {
      ASSERT_EQ(begin, next);
      ASSERT_LT(begin, end);
      next = end;
    }
    ASSERT_EQ(next, model.index().tensors[t].numel);
  }
}

TEST(UsByte, ClaimsWhatTheSimulatorSaysForEveryOptionAndPriority) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 600; ++round) {
    const Instance instance = random_instance(random, 1 + random() % 8);
    const CostModel model(instance.workload, instance.cluster);
    const UsByteOptions options{
        .partition_bytes = static_cast<std::int64_t>(random() % 2 * (1 + random() % 3'000'000)),
        .fuse = random() % 2 == 0,
        .per_tensor = random() % 2 == 0};
    const UsByteSchedule schedule = solve_us_byte(model, options);
    expect_every_element_once(model, schedule.ops);
    const SimulationResult result =
        simulate(overlapped_plan(model, schedule.ops), instance.workload, instance.cluster);
    ASSERT_EQ(result.cycle_ns, schedule.claim * result.cycle_iterations);
    ASSERT_GE(static_cast<double>(schedule.claim), result.lower_bound.iteration_ns);

    const UsByteModel units(model, one_tensor_each(model));
    SendOrder order = units.sequential(1 + static_cast<std::int64_t>(random() % 100'000));
    std::ranges::shuffle(order.first_phase, random);
    SendTimes times;
    units.run(order, random() % 2 == 0, times);
    const std::vector<ScheduledOp> ops = units.scheduled(times);
    expect_every_element_once(model, ops);
    ASSERT_EQ(iteration_time(model, ops), times.iteration);
  }
}

TEST(UsByte, GreedyIsNeverWorseThanSequentialNorBetterThanAllPermutations) {
  std::mt19937_64 random(5);
  int improved = 0;
  for (int round = 0; round < 300; ++round) {
    const Instance instance = random_instance(random, 1 + random() % 4);
    const CostModel model(instance.workload, instance.cluster);
    const UsByteModel units(model, one_tensor_each(model));
    if (units.units().size() > 6) continue;
    SendOrder order = units.sequential(1 + static_cast<std::int64_t>(random() % 200'000));
    SendTimes times;
    units.run(order, false, times);
    const Nanoseconds sequential = times.iteration;
    Nanoseconds best = sequential;
    SendOrder permuted = order;
    do {
      units.run(permuted, false, times);
      best = std::min(best, times.iteration);
    } while (std::ranges::next_permutation(permuted.first_phase).found);
    std::int64_t budget = 1'000'000;
    const Nanoseconds greedy = units.raise_priorities(order, false, budget);
    units.run(order, false, times);
    ASSERT_EQ(times.iteration, greedy);
    ASSERT_LE(greedy, sequential);
    ASSERT_GE(greedy, best);
    improved += greedy < sequential;
  }
  EXPECT_GT(improved, 0);
}

// Theorem 1, with all gradients ready at once, and Eq. 5: no order of contiguous groups is better.
TEST(UsByte, SecondPhaseIsOptimal) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    Instance instance = random_instance(random, 1 + random() % 5);
    for (Layer& layer : instance.workload.layers) {
      layer.backward_ns = 0;
      layer.tensors.resize(1);
    }
    const CostModel model(instance.workload, instance.cluster);
    const std::size_t n = instance.workload.layers.size();
    const UsByteModel units(model, one_tensor_each(model));
    SendTimes times;
    units.run(units.sequential(1 << 20), false, times);
    const Nanoseconds alone = times.iteration;
    units.run(units.sequential(1 << 20), true, times);
    const Nanoseconds fused = times.iteration;

    std::vector<std::size_t> order(n);
    for (std::size_t i = 0; i < n; ++i) order[i] = i;
    Nanoseconds best_alone = std::numeric_limits<Nanoseconds>::max();
    do {
      std::vector<ScheduledOp> ops;
      for (std::size_t l : order) {
        ops.push_back({.slices = {{l, 0, model.index().tensors[l].numel}}, .ready_layer = 0, .needed_by = l});
      }
      best_alone = std::min(best_alone, iteration_time(model, ops));
    } while (std::ranges::next_permutation(order).found);
    ASSERT_EQ(alone, best_alone);

    Nanoseconds best_fused = std::numeric_limits<Nanoseconds>::max();
    for (std::uint32_t cuts = 0; cuts < 1U << (n - 1); ++cuts) {
      std::vector<ScheduledOp> ops(1);
      for (std::size_t l = 0; l < n; ++l) {
        if (ops.back().slices.empty()) ops.back().needed_by = l;
        ops.back().slices.push_back({l, 0, model.index().tensors[l].numel});
        if (l + 1 < n && (cuts >> l & 1)) ops.emplace_back();
      }
      for (ScheduledOp& op : ops) op.ready_layer = 0;
      best_fused = std::min(best_fused, iteration_time(model, ops));
    }
    ASSERT_GE(fused, best_fused);
    ASSERT_LE(fused,
              best_fused + static_cast<Nanoseconds>(n));  // each op's cost is rounded up by less than 1 ns
  }
}

TEST(UsByte, ReachesTheBoundOfTable2) {
  const CostModel model(table2_workload(), table2_cluster());
  EXPECT_EQ(solve_us_byte(model, {}).claim, 247990000);
}

// Section 7.2: where start-up is all, US-Byte sends no more ops than WFBP; where it is nothing, it is as good
// as ByteScheduler with a credit of one block.
TEST(UsByte, LimitsOfSection72) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 50; ++round) {
    Instance instance = random_instance(random, 1 + random() % 8);
    instance.cluster.links[0].startup_ns = 1'000'000'000;
    const CostModel slow(instance.workload, instance.cluster);
    const UsByteOptions paper{.partition_bytes = 1 << 18, .fuse = false, .per_tensor = false};
    EXPECT_LE(solve_us_byte(slow, paper).ops.size(),
              slow.index().tensors.size() + instance.workload.layers.size());
    EXPECT_EQ(solve_us_byte(slow, {.partition_bytes = 1 << 18}).ops.size(), 1U);
  }
}

}  // namespace
}  // namespace gradweave
