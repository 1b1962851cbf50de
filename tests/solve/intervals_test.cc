#include "solve/intervals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "testing/cbc.h"

namespace gradweave {
namespace {

using Positions = std::vector<std::size_t>;

// Layers in forward order with given times, in units of a microsecond.
struct GivenTimes {
  std::vector<std::int64_t> forward, backward, communication;
};

Workload workload_of(const GivenTimes& times) {
  Workload workload{.name = "given"};
  for (std::size_t l = 0; l < times.backward.size(); ++l) {
    const std::string name = "layer" + std::to_string(l);
    workload.layers.push_back({.name = name,
                               .forward_ns = 1000 * (times.forward.empty() ? 1 : times.forward[l]),
                               .backward_ns = 1000 * times.backward[l],
                               .communication_ns = 1000 * times.communication[l],
                               .tensors = {{.name = name + ".weight", .numel = 8}}});
  }
  return workload;
}

Cluster one_link(Nanoseconds startup_ns = 0, Decimal us_per_byte = {1, 3}) {
  Cluster cluster{.workers = 2};
  cluster.links = {{.name = "net", .startup_ns = startup_ns, .us_per_byte = us_per_byte}};
  return cluster;
}

GivenTimes random_times(std::mt19937& random, std::size_t layers) {
  const auto draw = [&](int most) { return std::uniform_int_distribution<std::int64_t>(0, most)(random); };
  GivenTimes times;
  for (std::size_t l = 0; l < layers; ++l) {
    times.forward.push_back(draw(6));
    times.backward.push_back(draw(9));
    times.communication.push_back(draw(random() % 3 == 0 ? 40 : 9));
  }
  return times;
}

// The stall of a set by its definition: one queue, one op for each layer, in backward order.
Nanoseconds stall_by_definition(const GivenTimes& times, const Positions& set, bool forward_overlap) {
  const std::size_t layers = times.backward.size();
  std::int64_t compute = 0;
  for (std::size_t l = 0; l < layers; ++l) compute += times.forward[l] + times.backward[l];
  std::int64_t free = 0;
  std::int64_t stall = 0;
  for (std::size_t position : set) {
    const std::size_t l = layers - 1 - position;
    std::int64_t ready = compute;
    for (std::size_t j = 0; j < l; ++j) ready -= times.backward[j];
    std::int64_t awaited = compute;
    for (std::size_t j = 0; forward_overlap && j < l; ++j) awaited += times.forward[j];
    free = std::max(free, ready) + times.communication[l];
    stall = std::max(stall, free - awaited);
  }
  return 1000 * stall;
}

// The least sum of stalls over all ways to cut the positions into `period` intervals.
Nanoseconds best_cuts(const Packer& packer, std::size_t begin, std::size_t period) {
  const std::size_t layers = packer.layer_count();
  Nanoseconds best = std::numeric_limits<Nanoseconds>::max();
  Positions set;
  for (std::size_t end = begin; end <= layers; ++end) {
    if (end > begin) set.push_back(end - 1);
    if (period == 1 && end < layers) continue;
    const Nanoseconds rest = period == 1 ? 0 : best_cuts(packer, end, period - 1);
    best = std::min(best, packer.stall(set) + rest);
  }
  return best;
}

// The least sum over all assignments of positions to sets.
Nanoseconds best_sets(const Packer& packer, std::size_t position, std::vector<Positions>& sets) {
  if (position == packer.layer_count()) {
    Nanoseconds sum = 0;
    for (const Positions& set : sets) sum += packer.stall(set);
    return sum;
  }
  Nanoseconds best = std::numeric_limits<Nanoseconds>::max();
  for (Positions& set : sets) {
    set.push_back(position);
    best = std::min(best, best_sets(packer, position + 1, sets));
    set.pop_back();
  }
  return best;
}

// Algorithm 2, corrected, as it is printed: every solution is built and the best kept.
Nanoseconds algorithm_2(const Packer& packer, std::vector<Positions> sets, std::size_t position,
                        std::size_t h) {
  const auto sum = [&] {
    Nanoseconds total = 0;
    for (const Positions& set : sets) total += packer.stall(set);
    return total;
  };
  if (position == packer.layer_count()) return sum();
  if (h + 1 == sets.size()) {
    for (std::size_t p = position; p < packer.layer_count(); ++p) sets[h].push_back(p);
    return sum();
  }
  Positions longer = sets[h];
  longer.push_back(position);
  const bool overflows = packer.stall(sets[h]) > 0;
  if (overflows) return algorithm_2(packer, sets, position, h + 1);
  const Nanoseconds delayed = sets[h].empty() || packer.stall(longer) == 0
                                  ? std::numeric_limits<Nanoseconds>::max()
                                  : algorithm_2(packer, sets, position, h + 1);
  sets[h] = longer;
  return std::min(delayed, algorithm_2(packer, sets, position + 1, h));
}

Positions all_positions(const Assignment& assignment) {
  Positions all;
  for (const Positions& set : assignment.sets) all.insert(all.end(), set.begin(), set.end());
  std::ranges::sort(all);
  return all;
}

void expect_partition(const Packer& packer, const Assignment& assignment) {
  const Positions all = all_positions(assignment);
  ASSERT_EQ(all.size(), packer.layer_count());
  for (std::size_t p = 0; p < all.size(); ++p) EXPECT_EQ(all[p], p);
}

TEST(Packer, StallOfASetIsThatOfItsQueue) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const GivenTimes times = random_times(random, 1 + random() % 7);
    const CostModel model(workload_of(times), one_link());
    const bool forward_overlap = random() % 2 == 0;
    const Packer packer(model, forward_overlap);
    Positions set;
    for (std::size_t p = 0; p < packer.layer_count(); ++p) {
      if (random() % 2 == 0) set.push_back(p);
    }
    EXPECT_EQ(packer.stall(set), stall_by_definition(times, set, forward_overlap));
  }
}

// Workloads whose costs come from the links: random sizes, dtypes only where asked for.
CostModel modelled(std::mt19937& random, std::size_t layers, std::size_t links, bool mixed_dtypes,
                   bool some_given = false) {
  Workload workload{.name = "modelled"};
  for (std::size_t l = 0; l < layers; ++l) {
    const std::string name = "layer" + std::to_string(l);
    workload.layers.push_back({.name = name,
                               .forward_ns = static_cast<Nanoseconds>(random() % 1000),
                               .backward_ns = static_cast<Nanoseconds>(random() % 3000)});
    for (std::size_t t = 0; t < random() % 4; ++t) {
      const DType dtype = mixed_dtypes && random() % 3 == 0 ? DType::kBFloat16 : DType::kFloat32;
      workload.layers.back().tensors.push_back(
          {name + "." + std::to_string(t), static_cast<std::int64_t>(1 + random() % 700), dtype});
    }
    if (some_given && !workload.layers.back().tensors.empty() && random() % 2 == 0)
      workload.layers.back().communication_ns = static_cast<Nanoseconds>(random() % 2000);
  }
  Cluster cluster{.workers = 2};
  for (std::size_t k = 0; k < links; ++k) {
    cluster.links.push_back({.name = "link" + std::to_string(k),
                             .startup_ns = static_cast<Nanoseconds>(random() % 1500),
                             .us_per_byte = {static_cast<std::int64_t>(1 + random() % 99999), 7}});
  }
  return CostModel(workload, cluster);
}

TEST(Packer, MessagesCostWhatTheCostModelSays) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const CostModel model = modelled(random, 1 + random() % 8, 1 + random() % 3, true, round % 2 == 1);
    const bool forward_overlap = random() % 2 == 0;
    const Packer packer(model, forward_overlap);
    Positions set;
    for (std::size_t p = 0; p < packer.layer_count(); ++p) {
      if (random() % 4 != 0) set.push_back(p);
    }
    std::vector<Nanoseconds> free(model.link_count(), 0);
    Nanoseconds stall = 0;
    std::size_t tensors = 0;
    std::size_t previous = 0;
    for (const Packer::Packed& packed : packer.pack(set)) {
      EXPECT_GE(packed.last, previous);
      previous = packed.last;
      tensors += packed.message.slices.size();
      free[packed.link] = std::max(free[packed.link], packer.ready(packed.last)) +
                          model.all_reduce(packed.link, packed.message.slices);
      stall = std::max(stall, free[packed.link] - packer.awaited(packed.last));
    }
    EXPECT_EQ(packer.stall(set), stall);
    std::size_t expected = 0;
    for (std::size_t p : set) {
      expected +=
          model.index().first_tensor[packer.layer(p) + 1] - model.index().first_tensor[packer.layer(p)];
    }
    EXPECT_EQ(tensors, expected);
  }
}

// The earliest end of layers begin.. on one link, free at `free`, over all ways to fuse consecutive layers.
Nanoseconds best_fusion(const CostModel& model, const Packer& packer, std::size_t begin, Nanoseconds free) {
  if (begin == packer.layer_count()) return free;
  Nanoseconds best = std::numeric_limits<Nanoseconds>::max();
  std::vector<Slice> slices;
  for (std::size_t p = begin; p < packer.layer_count(); ++p) {
    const std::size_t l = packer.layer(p);
    for (std::size_t t = model.index().first_tensor[l]; t < model.index().first_tensor[l + 1]; ++t) {
      slices.push_back({t, 0, model.index().tensors[t].numel});
    }
    const Nanoseconds end = std::max(free, packer.ready(p)) + model.all_reduce(0, slices);
    best = std::min(best, best_fusion(model, packer, p + 1, end));
  }
  return best;
}

TEST(Packer, FusesNearlyOptimallyOnOneLink) {
  std::mt19937 random(3);
  int optimal = 0;
  for (int round = 0; round < 500; ++round) {
    const CostModel model = modelled(random, 1 + random() % 9, 1, false);
    const Packer packer(model, false);
    Packer::Queue queue(packer);
    for (std::size_t p = 0; p < packer.layer_count(); ++p) queue.append(p);
    if (packer.layer_count() == 0) continue;
    const Nanoseconds best = best_fusion(model, packer, 0, 0) - packer.ready(0);
    const Nanoseconds found = queue.end(0) - packer.ready(0);
    EXPECT_GE(found, best);
    EXPECT_LE(static_cast<double>(found), 1.1 * static_cast<double>(best));
    optimal += found == best;
  }
  EXPECT_GT(optimal, 350);
}

TEST(Intervals, ExactIsTheBestOfAllCuts) {
  std::mt19937 random(4);
  for (int round = 0; round < 400; ++round) {
    const bool given = random() % 2 == 0;
    const GivenTimes times = random_times(random, 1 + random() % 7);
    const CostModel model = given ? CostModel(workload_of(times), one_link())
                                  : modelled(random, 1 + random() % 8, 1 + random() % 3, true);
    const Packer packer(model, random() % 3 == 0);
    const std::size_t period = 1 + random() % 5;
    const Assignment exact = exact_intervals(packer, period);
    expect_partition(packer, exact);
    EXPECT_EQ(exact.sets.size(), period);
    EXPECT_EQ(exact.stall, best_cuts(packer, 0, period));
    EXPECT_LE(exact.stall, equal_number(packer, period).stall);
  }
}

TEST(Intervals, EqualNumberCutsAtEqualShares) {
  const CostModel model(workload_of({{}, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}}), one_link());
  EXPECT_EQ(equal_number(Packer(model, false), 2).sets, (std::vector<Positions>{{0, 1}, {2, 3, 4}}));
}

TEST(Intervals, PeriodsLongerThanTheModelLeaveSetsEmpty) {
  const CostModel model(workload_of({{1, 1}, {2, 2}, {5, 5}}), one_link());
  const Packer packer(model, false);
  for (const Assignment& assignment :
       {exact_intervals(packer, 7), paper_search(packer, 7), equal_number(packer, 7)}) {
    EXPECT_EQ(assignment.sets.size(), 7u);
    expect_partition(packer, assignment);
  }
}

// With the queue and without start-ups a layer that joins a set behind costs that set no more than itself, so
// that closing a set that overflows loses nothing: Algorithm 2 is then as good as the recurrence. With
// start-ups it is not.
TEST(Intervals, PaperSearchIsAlgorithm2AndNeverBetterThanExact) {
  std::mt19937 random(5);
  int worse = 0;
  for (int round = 0; round < 800; ++round) {
    const bool given = round % 2 == 0;
    const GivenTimes times = random_times(random, 1 + random() % 8);
    const CostModel model = given ? CostModel(workload_of(times), one_link())
                                  : modelled(random, 1 + random() % 8, 1 + random() % 2, false);
    const Packer packer(model, false);
    const std::size_t period = 1 + random() % 5;
    const Assignment found = paper_search(packer, period);
    expect_partition(packer, found);
    EXPECT_EQ(found.stall, algorithm_2(packer, std::vector<Positions>(period), 0, 0));
    const Nanoseconds exact = exact_intervals(packer, period).stall;
    EXPECT_GE(found.stall, exact);
    if (given) {
      EXPECT_EQ(found.stall, exact);
    }
    worse += found.stall > exact;
  }
  EXPECT_GT(worse, 0);
}

TEST(ArbitrarySets, BeatIntervalsOnTheKnownExample) {
  const CostModel model(workload_of({{0, 0, 0, 0}, {1, 2, 1, 2}, {0, 4, 3, 2}}), one_link());
  const Packer packer(model, false);
  EXPECT_EQ(exact_intervals(packer, 2).stall, 4000);
  EXPECT_EQ(arbitrary_sets(packer, 2, 1000).stall, 3000);
}

TEST(ArbitrarySets, AreTheBestOfAllWhereTheSearchEnds) {
  std::mt19937 random(6);
  int better = 0;
  for (int round = 0; round < 250; ++round) {
    const GivenTimes times = random_times(random, 1 + random() % 6);
    const bool given = random() % 2 == 0;
    const CostModel model = given ? CostModel(workload_of(times), one_link())
                                  : modelled(random, 1 + random() % 6, 1 + random() % 3, true);
    const Packer packer(model, random() % 3 == 0);
    std::vector<Positions> sets(1 + random() % 3);
    const Assignment found = arbitrary_sets(packer, sets.size(), 1'000'000);
    expect_partition(packer, found);
    const Nanoseconds best = best_sets(packer, 0, sets);
    EXPECT_EQ(found.stall, best);
    better += best < exact_intervals(packer, sets.size()).stall;
  }
  EXPECT_GT(better, 0);
}

TEST(ArbitrarySets, AnEndedSearchKeepsTheBestFound) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    const CostModel model(workload_of(random_times(random, 6)), one_link());
    const Packer packer(model, false);
    std::vector<Positions> sets(3);
    const Assignment found = arbitrary_sets(packer, 3, 5);
    const Nanoseconds best = best_sets(packer, 0, sets);
    expect_partition(packer, found);
    EXPECT_GE(found.stall, best);
    EXPECT_LE(found.stall, exact_intervals(packer, 3).stall);
  }
}

TEST(FillBubbles, AddsLayersWithoutALongerStall) {
  std::mt19937 random(8);
  int added = 0;
  for (int round = 0; round < 300; ++round) {
    const CostModel model(workload_of(random_times(random, 1 + random() % 8)), one_link());
    const Packer packer(model, random() % 3 == 0);
    const Assignment before = exact_intervals(packer, 1 + random() % 4);
    Assignment after = before;
    fill_bubbles(packer, after);
    for (std::size_t h = 0; h < before.sets.size(); ++h) {
      EXPECT_TRUE(std::ranges::is_sorted(after.sets[h], std::less_equal<>()));
      EXPECT_TRUE(std::ranges::includes(after.sets[h], before.sets[h]));
      EXPECT_LE(packer.stall(after.sets[h]), packer.stall(before.sets[h]));
      added += static_cast<int>(after.sets[h].size() - before.sets[h].size());
    }
    EXPECT_EQ(after.stall, before.stall);
  }
  EXPECT_GT(added, 100);
}

TEST(FillBubbles, TakesTrailingSlack) {
  // Layer 1 (position 0) is sent alone: its 1 us leaves room for layer 0's 2 us before the iteration ends...
  // which it cannot use, for layer 0 is ready at the end; layer 0 costs nothing in the second case and joins.
  for (const std::int64_t last : {2, 0}) {
    const CostModel model(workload_of({{0, 0}, {4, 4}, {last, 1}}), one_link());
    const Packer packer(model, false);
    Assignment assignment{.sets = {{0}, {1}}};
    fill_bubbles(packer, assignment);
    EXPECT_EQ(assignment.sets[0], last == 0 ? (Positions{0, 1}) : (Positions{0}));
    EXPECT_EQ(assignment.sets[1], (Positions{0, 1}));
  }
}

// min sum_h e_h: x(l,h) = 1 if position l is in set h, each in one set; for k in set h, e_h >= P_k - P_L +
// sum over l >= k in the set of c_l; where sets are intervals, a set's number never falls with l.
std::string model_of(const GivenTimes& times, std::size_t period, bool intervals) {
  const std::size_t layers = times.backward.size();
  const auto x = [](std::size_t p, std::size_t h) {
    return "x" + std::to_string(p) + "_" + std::to_string(h);
  };
  std::string rows, names;
  std::int64_t big = 1;
  for (std::size_t l = 0; l < layers; ++l) big += times.backward[l] + times.communication[l];
  for (std::size_t p = 0; p < layers; ++p) {
    for (std::size_t h = 0; h < period; ++h) {
      names += " " + x(p, h) + "\n";
      rows += (h == 0 ? "" : " +") + (" " + x(p, h));
    }
    rows += " = 1\n";
    std::int64_t until_end = 0;  // P_L - P_k
    for (std::size_t l = 0; l + 1 + p < layers; ++l) until_end += times.backward[l];
    for (std::size_t h = 0; h < period; ++h) {
      rows += " e" + std::to_string(h);
      for (std::size_t q = p; q < layers; ++q) {
        rows +=
            " - " + std::to_string(times.communication[layers - 1 - q] + (q == p ? big : 0)) + " " + x(q, h);
      }
      rows += " >= " + std::to_string(-until_end - big) + "\n";
    }
    for (std::size_t h = 0; intervals && p > 0 && h < period; ++h) {
      std::string row;
      for (std::size_t g = 0; g <= h; ++g) row += " + " + x(p - 1, g) + " - " + x(p, g);
      rows += row + " >= 0\n";
    }
  }
  std::string objective;
  for (std::size_t h = 0; h < period; ++h) objective += (h == 0 ? " e" : " + e") + std::to_string(h);
  return "Minimize\n obj:" + objective + "\nSubject To\n" + rows + "Binary\n" + names + "End\n";
}

TEST(Intervals, AgreeWithAMixedIntegerModel) {
  if (!testing::cbc_available()) GTEST_SKIP() << "cbc is not installed; apt-get install coinor-cbc";
  std::mt19937 random(9);
  for (int round = 0; round < 25; ++round) {
    const GivenTimes times = random_times(random, 2 + random() % 6);
    const std::size_t period = 1 + random() % 3;
    const CostModel model(workload_of(times), one_link());
    const Packer packer(model, false);
    EXPECT_NEAR(*testing::solve_with_cbc(model_of(times, period, true)),
                static_cast<double>(exact_intervals(packer, period).stall) / 1000, 1e-6);
    EXPECT_NEAR(*testing::solve_with_cbc(model_of(times, period, false)),
                static_cast<double>(arbitrary_sets(packer, period, 1'000'000).stall) / 1000, 1e-6);
  }
}

}  // namespace
}  // namespace gradweave
