#include "schemes/us_byte/us_byte.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "gradweave/json.h"
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

// Layers a, b, c of one tensor each, in blocks of 1000 bytes; start-up and block take 1 us each.
Instance in_blocks(const std::vector<std::int64_t>& blocks, const std::vector<Nanoseconds>& backward) {
  Instance instance{{.name = "w"}, {.workers = 4, .links = {{"net", 1000, {1, 3}}}}};
  for (std::size_t l = 0; l < blocks.size(); ++l) {
    const std::string name(1, static_cast<char>('a' + l));
    instance.workload.layers.push_back(
        {name, 100, backward[l], std::nullopt, {{name + ".w", 250 * blocks[l]}}});
  }
  return instance;
}

// c has 5 blocks and goes first; b and a are ready at 3 and 5 us. Its op takes 2 blocks until 3 us, and merged
// until 5 us it has ceil((5 - 0 - 1) / 1) = 4: 2 more, so that 1 of the 3 left stays for the second phase.
// Algorithm 1 as printed takes all 4 off the 3: the fifth block is never sent, and 9.2 us are
// claimed.
TEST(UsByte, AMergedOperationCountsItsBlocksOnce) {
  const Instance instance = in_blocks({1, 1, 5}, {2000, 3000, 0});
  const CostModel model(instance.workload, instance.cluster);
  const UsByteModel units(model, one_tensor_each(model));
  SendOrder order = units.sequential(1000);
  order.first_phase = {2, 0, 1};
  SendTimes times;
  units.run(order, false, times);
  const std::vector<std::vector<Nanoseconds>> expected = {
      {2, 0, 1000, 0, 5000}, {0, 0, 250, 5000, 7000}, {1, 0, 250, 7000, 9000}, {2, 1000, 1250, 9000, 11000}};
  std::vector<std::vector<Nanoseconds>> sent;
  for (const SendOp& op : times.ops) {
    const SendPart& part = times.parts[op.first_part];
    sent.push_back({static_cast<Nanoseconds>(part.unit), part.begin, part.end, op.start, op.end});
  }
  EXPECT_EQ(sent, expected);
  EXPECT_EQ(times.first_phase_ops, 1U);
  EXPECT_EQ(times.iteration, 11100);  // and c's forward
  const Plan plan = overlapped_plan(model, units.scheduled(times));
  EXPECT_EQ(simulate(plan, instance.workload, instance.cluster).iteration_ns(), 11100);
}

// "Always faster than ByteScheduler and MG-WFBP" is false of the paper's form. a is ready at 6 us; blocks of
// 2000 bytes take 2 us and a start-up.
TEST(UsByte, AsInThePaperIsNotAlwaysTheFastest) {
  Instance instance = in_blocks({2, 10}, {6000, 0});
  instance.workload.layers[0].forward_ns = 100'000;
  const auto time_of = [&](std::string_view scheme, const std::map<std::string, std::string>& options) {
    const Plan plan = std::get<Plan>(make_plan(scheme, instance.workload, instance.cluster, options));
    return simulate(plan, instance.workload, instance.cluster).iteration_ns();
  };
  const std::map<std::string, std::string> paper = {
      {"fusion", "off"}, {"block_sizes", "uniform"}, {"partition_bytes", "2000"}};
  // Start-up 1 us: two of ByteScheduler's parts end at 6 us, US-Byte's op of ceil((6 - 1) / 2) = 3 blocks at 7.
  EXPECT_EQ(time_of("bytescheduler", {{"partition_bytes", "2000"}, {"credit_bytes", "1"}}),
            6000 + 3000 + 100'100);
  EXPECT_EQ(time_of("us_byte", paper), 7000 + 3000 + 100'100);
  // Start-up 100 us: one against three, as a block goes first, then a and the rest.
  instance.workload.layers[0].forward_ns = 100;
  instance.cluster.links[0].startup_ns = 100'000;
  EXPECT_EQ(time_of("mg_wfbp", {}), 6000 + 100'000 + 12'000 + 200);
  EXPECT_EQ(time_of("us_byte", paper), 102'000 + 102'000 + 108'000 + 100);
}

// c is still being sent when b becomes ready, but everything hides behind a's backward either way.
TEST(UsByte, APriorityThatGainsNothingIsNotRaised) {
  const Instance instance = in_blocks({1, 1, 2}, {100'000, 1500, 0});
  const CostModel model(instance.workload, instance.cluster);
  const UsByteModel units(model, one_tensor_each(model));
  SendOrder order = units.sequential(1000);
  const SendOrder before = order;
  std::int64_t budget = 1'000'000;
  units.raise_priorities(order, false, budget);
  EXPECT_EQ(order.first_phase, before.first_phase);
}

TEST(UsByte, ClaimsWhatTheSimulatorSaysForEveryOptionAndPriority) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 600; ++round) {
    const Instance instance = random_instance(random, 1 + random() % 8);
    const CostModel model(instance.workload, instance.cluster);
    UsByteOptions options{.fusion = random() % 2 == 0,
                          .block_sizes = random() % 2 == 0 ? BlockSizes::kPerTensor : BlockSizes::kUniform};
    if (random() % 2 == 0) options.partition_bytes = static_cast<std::int64_t>(1 + random() % 3'000'000);
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
    // What was raised above the units from k on stays apart from all else that was raised.
    for (std::size_t k = 0; k < order.first_phase.size(); ++k) {
      const std::size_t raised = order.first_phase[k];
      ASSERT_GE(raised, k);
      for (; k < raised; ++k) ASSERT_EQ(order.first_phase[k + 1], k);
    }
    improved += greedy < sequential;
  }
  EXPECT_GT(improved, 0);
}

// Algorithm 2 over forward order, with the paper's S_p of 4 Mb: 0 to 4.1 %.
TEST(UsByte, CorrectedGreedyGainsLittleOnRealNetworks) {
  const std::string examples = std::string(GRADWEAVE_SOURCE_DIR) + "/examples/";
  int below_one_percent = 0;
  for (const char* network : {"vgg16", "resnet50", "densenet201", "inception-v4", "bert-base"}) {
    for (const char* links : {"eth-10g-8", "eth-10g-128", "ib-100g-64"}) {
      const CostModel model(read_workload(examples + "workloads/" + network + ".json"),
                            read_cluster(examples + "clusters/" + links + ".json"));
      const UsByteModel units(model, one_tensor_each(model));
      SendOrder order = units.sequential(500'000);
      SendTimes times;
      units.run(order, false, times);
      std::int64_t budget = 100'000'000;
      const Nanoseconds greedy = units.raise_priorities(order, false, budget);
      const double gain =
          static_cast<double>(times.iteration - greedy) / static_cast<double>(times.iteration);
      EXPECT_GE(gain, 0) << network << " on " << links;
      EXPECT_LT(gain, 0.045) << network << " on " << links;
      below_one_percent += gain < 0.01;
    }
  }
  EXPECT_GE(below_one_percent, 8);
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
    const UsByteOptions paper{
        .partition_bytes = 1 << 18, .fusion = false, .block_sizes = BlockSizes::kUniform};
    EXPECT_LE(solve_us_byte(slow, paper).ops.size(),
              slow.index().tensors.size() + instance.workload.layers.size());
    EXPECT_EQ(solve_us_byte(slow, {.partition_bytes = 1 << 18}).ops.size(), 1U);
  }
}

}  // namespace
}  // namespace gradweave
