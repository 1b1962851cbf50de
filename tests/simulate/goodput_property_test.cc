// Goodput under faults: closed forms against simulations of single events.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <numbers>

#include "gradweave/error.h"
#include "gradweave/goodput.h"

namespace gradweave {
namespace {

double between(double low, double high) {  // evenly in logarithms
  const double share = *rc::gen::inRange(0, 1'000'000) / 1e6;
  return low * std::pow(high / low, share);
}

// The simulation's sampling error, and `also` for what the closed form leaves out.
void agree(const Goodput& simulated, const Goodput& expected, double also = 0) {
  RC_LOG() << simulated.share << " +- " << simulated.uncertainty << ", expected " << expected.share << '\n';
  RC_ASSERT(simulated.uncertainty < 0.05);
  RC_ASSERT(std::abs(simulated.share - expected.share) <= 3 * simulated.uncertainty + also + 1e-4);
}

RC_GTEST_PROP(Goodput, IslandsReachWhatIsExpected, ()) {
  const auto islands = *rc::gen::inRange<std::int64_t>(16, 400);
  // From averages that nearly all land to such that nearly none does.
  const double deaths_in_window = between(0.001, 6), window = between(1, 100);
  const double mtbf = static_cast<double>(islands) * window / deaths_in_window;
  const double detection = window * between(0.01, 1) / 3, epoch = window * between(0.01, 1) / 3;
  // Away for a hundredth of their lives at most: the number that is there hardly changes.
  const Faults faults{.workers = islands,
                      .mtbf_s = mtbf,
                      .recovery_s = mtbf * between(1e-5, 0.01),
                      .detection_s = detection,
                      .epoch_s = epoch};
  const IslandTraining training{.step_s = 0.1,
                                .average_s = window - detection - epoch,
                                .state_s = mtbf * between(1e-6, 0.05),
                                .checkpoint_every_s = 600};
  const IslandGoodput simulated =
      simulate_islands(faults, training, {.seed = *rc::gen::arbitrary<std::uint64_t>(), .deaths = 100'000});
  const IslandGoodput expected = expected_islands(faults, training);
  agree(simulated, expected, 0.01);
  RC_ASSERT(std::abs(simulated.there - expected.there) < 0.01);
  RC_ASSERT(std::abs(simulated.lost - expected.lost) < 3 * simulated.uncertainty + 0.01);
  RC_ASSERT(std::abs(simulated.landed - expected.landed) < 0.02);
  if (expected.landed > 0.02) {
    RC_ASSERT(std::abs(simulated.landed_every_s / expected.landed_every_s - 1) < 0.1);
  }
}

RC_GTEST_PROP(Goodput, RestartsReachWhatIsExpected, ()) {
  const Faults faults{.workers = *rc::gen::inRange<std::int64_t>(2, 5000),
                      .mtbf_s = 1e6,
                      .recovery_s = between(1, 300),
                      .detection_s = between(1, 60)};
  const CheckpointTraining training{
      .every_s = between(1, 2000), .write_s = between(0.01, 100), .restart_s = between(1, 100)};
  agree(simulate_restarts(faults, training, {.seed = *rc::gen::arbitrary<std::uint64_t>(), .deaths = 50'000}),
        expected_restarts(faults, training));
}

RC_GTEST_PROP(Goodput, AQuorumReachesWhatIsExpected, ()) {
  const auto workers = *rc::gen::inRange<std::int64_t>(8, 2000);
  const double gap = between(10, 1000);
  const Faults faults{.workers = workers,
                      .mtbf_s = gap * static_cast<double>(workers),
                      .recovery_s = gap * between(1e-3, 0.1),
                      .detection_s = between(0.1, 20),
                      .epoch_s = between(0.1, 20)};
  const double step = between(0.01, 30);
  agree(simulate_quorum(faults, step, 1, {.seed = *rc::gen::arbitrary<std::uint64_t>(), .deaths = 50'000}),
        expected_quorum(faults, step, 1), 0.01);
}

RC_GTEST_PROP(Goodput, NoIntervalIsBetterThanTheBest, ()) {
  const Faults faults{.workers = *rc::gen::inRange<std::int64_t>(2, 5000), .mtbf_s = between(1e4, 1e8)};
  CheckpointTraining training{.write_s = between(0.01, 1000), .restart_s = 10};
  training.every_s = best_checkpoint_s(faults, training.write_s);
  const double best = expected_restarts(faults, training).share;
  training.every_s *= between(0.1, 10);
  RC_ASSERT(expected_restarts(faults, training).share <= best * (1 + 1e-9));
}

TEST(Goodput, TheBestIntervalIsYoungsWhereFaultsAreRare) {
  const Faults faults{.workers = 100, .mtbf_s = 1e8};
  EXPECT_NEAR(best_checkpoint_s(faults, 1) / std::sqrt(2 * 1e6), 1, 1e-3);
}

// A worked example: an average of 8 s, 1 s until a death is known and 1 s until all agree; a death each 1,000 s.
TEST(Goodput, WhatALossCosts) {
  const Faults faults{.workers = 100, .mtbf_s = 1e5, .detection_s = 1, .epoch_s = 1};
  const IslandTraining training{.step_s = 1, .period = 8, .average_s = 8, .checkpoint_every_s = 600};
  // Whoever dies loses 4 s since the last average began and 8 s while it was on its way.
  EXPECT_NEAR(expected_islands(faults, training).lost, 12 / 1e5, 1e-6);
  EXPECT_NEAR(expected_islands(faults, training).landed_every_s, 8, 0.1);
  EXPECT_NEAR(least_mtbf_s(faults, training), 100 * 10 / std::numbers::ln2, 1e-9);
}

// Islands that live for about as long as it takes to the next average.
TEST(Goodput, RareAveragesLoseWhatADyingIslandDid) {
  const Faults faults{.workers = 64, .mtbf_s = 3600, .recovery_s = 300, .detection_s = 10, .epoch_s = 1};
  IslandTraining training{.step_s = 0.2, .average_s = 0.9, .state_s = 2.5, .checkpoint_every_s = 600};
  for (const std::int64_t period : {1, 100, 1000, 3000, 10'000, 100'000}) {
    training.period = period;
    const IslandGoodput simulated = simulate_islands(faults, training);
    EXPECT_NEAR(simulated.share, expected_islands(faults, training).share, simulated.uncertainty + 0.01)
        << period;
  }
}

TEST(Goodput, AverageThatNeverLandsLosesAllThatADyingIslandDid) {
  const Faults faults{.workers = 1000, .mtbf_s = 1e4, .recovery_s = 10};
  const IslandTraining training{.step_s = 1, .average_s = 500, .checkpoint_every_s = 600};
  const IslandGoodput none = simulate_islands(faults, training, {.deaths = 100'000});
  EXPECT_GT(none.lost, 0.9);
  EXPECT_EQ(none.landed, 0);
  EXPECT_TRUE(std::isinf(none.landed_every_s));
  EXPECT_LT(expected_islands(faults, training).share, 1e-9);
}

// Islands of whose averages none lands: what was trained before anything counted is lost while it counts.
TEST(Goodput, SharesStaySharesWhereNearlyAllIsLost) {
  const Faults faults{.workers = 4096, .mtbf_s = 1800, .recovery_s = 300, .detection_s = 10, .epoch_s = 1};
  const IslandTraining training{
      .step_s = 0.2, .period = 8, .average_s = 0.9, .state_s = 2.5, .checkpoint_every_s = 600};
  const IslandGoodput found = simulate_islands(faults, training);
  EXPECT_GE(found.share, 0);
  EXPECT_LT(found.share, 0.01);
  EXPECT_GT(found.lost, 0.9);
  EXPECT_LE(found.lost, 1);
}

TEST(Goodput, AllThatHaveTheStateGiveIt) {
  Faults faults{.workers = 1000, .mtbf_s = 1e5, .recovery_s = 10, .detection_s = 1};
  IslandTraining training{.step_s = 1, .average_s = 5, .state_s = 500, .checkpoint_every_s = 600};
  // Deaths each 100 s, and 500 s to give the state to one.
  EXPECT_NEAR(simulate_islands(faults, training, {.deaths = 100'000}).there, 1 - 511 / 1e5, 1e-3);
  // Of two, one that comes takes it from the other, which mostly dies before.
  faults = {.workers = 2, .mtbf_s = 100, .recovery_s = 1};
  training = {.step_s = 1, .average_s = 1, .state_s = 500, .checkpoint_every_s = 600};
  EXPECT_LT(simulate_islands(faults, training).there, 0.6);
}

// Two that are often both gone: what was trained since the checkpoint is lost then.
TEST(Goodput, AllMayBeGone) {
  const Faults faults{.workers = 2, .mtbf_s = 100, .recovery_s = 50};
  const IslandTraining often{.step_s = 1, .average_s = 1, .checkpoint_every_s = 10};
  IslandTraining rarely = often;
  rarely.checkpoint_every_s = 500;
  const IslandGoodput one = simulate_islands(faults, often), other = simulate_islands(faults, rarely);
  EXPECT_GT(one.all_gone, 100);
  EXPECT_GT(one.share, other.share + 0.2);
}

TEST(Goodput, TheSameSeedTheSameRun) {
  const Faults faults{.workers = 8, .mtbf_s = 1000, .recovery_s = 60, .detection_s = 1, .epoch_s = 1};
  const IslandTraining training{.step_s = 1, .period = 8, .average_s = 4, .checkpoint_every_s = 600};
  EXPECT_EQ(simulate_islands(faults, training, {.seed = 3}).share,
            simulate_islands(faults, training, {.seed = 3}).share);
  EXPECT_NE(simulate_islands(faults, training, {.seed = 3}).share,
            simulate_islands(faults, training, {.seed = 4}).share);
}

TEST(Goodput, WhatIsOutOfRangeIsRefused) {
  const IslandTraining training{.step_s = 1, .checkpoint_every_s = 600};
  EXPECT_THROW(expected_islands({.workers = 1, .mtbf_s = 1}, training), InvalidInput);
  EXPECT_THROW(expected_islands({.workers = 2, .mtbf_s = 0}, training), InvalidInput);
  EXPECT_THROW(simulate_islands({.workers = 2, .mtbf_s = 1, .recovery_s = -1}, training), InvalidInput);
  EXPECT_THROW(simulate_islands({.workers = 2, .mtbf_s = 1}, training, {.deaths = 1}), InvalidInput);
  EXPECT_THROW(simulate_quorum({.workers = 2, .mtbf_s = 1}, 0, 0), InvalidInput);
  EXPECT_THROW(average_traffic(100, "fp16", 4), InvalidInput);
}

TEST(Goodput, TrafficOfAnAverage) {
  // Each sends 4 bytes an element: three blocks of 1,024 to the others, and its own mean three times.
  const AverageTraffic floats = average_traffic(1024, "none", 4);
  EXPECT_EQ(floats.bytes, 3 * (16 + 1024) + 3 * 1024);
  EXPECT_EQ(floats.messages, 6);
  EXPECT_EQ(floats.peers, 3);
  EXPECT_EQ(average_traffic(256 * 4, "int4", 4).bytes, 3 * (16 + 132) + 3 * 132);
  // More islands than groups: who sums nothing sends no mean.
  EXPECT_EQ(average_traffic(256, "int4", 4).messages, 3);
  EXPECT_EQ(average_traffic(1024, "none", 1).bytes, 0);
  EXPECT_GT(average_traffic(std::int64_t{1} << 50, "none", 4).bytes, std::int64_t{1} << 52);
  EXPECT_THROW(average_traffic((std::int64_t{1} << 50) + 1, "none", 4), InvalidInput);
}

}  // namespace
}  // namespace gradweave
