// COVAP: a coarse filter sends each part of the gradient every I-th iteration; the rest goes into a residual.
//
// L. Meng, Y. Sun, W. Li, "Near-Linear Scaling Data Parallel Training with Overlapping-Aware Gradient
// Compression", 2023.
//
//   paper                here
//   T_before, T_comp     forward and backward of the workload
//   T_comm               all buckets, on all links at once: 1 / sum over links of 1 / (their time on it)
//   tensor               a bucket of PyTorch's DDP (25 MiB, first 1 MiB), numbered in backward order
//   I                    `interval`
//   G, residuals         gradient, Plan::residual; a dropped block's residual becomes G + coef * residual
//
//   Eq. 1    T_DP = T_before + T_comp + T_comm
//   Eq. 2    speed-up of P workers = P * (T_before + T_comp) / T_DP
//   Eq. 4    T_ovlp = T_before + T_comp + max(0, T_comm - T_comp)
//   III.A    shard i is sent in iteration n iff (i + n) % I == 0
//   III.B    I = ceil(CCR), CCR = T_comm / T_comp
//   III.C    a tensor is cut evenly into min(I, floor(numel / median)) shards, contiguous
//   III.D    coef(n) = min(init + floor(n / ascend_steps) * ascend_range, 1)
//
// Complexity: O(tensors + shards * links); assignment=balanced: branch and bound with a node limit.
//
// Deviations from the paper:
//  1. I is at most the number of shards: with fewer, some iterations would send and update nothing.
//  2. CCR is rounded within the measurement's uncertainty (covap_interval).
//  3. The median is the true one: Table V's averages the wrong two entries (20 shards, not 26).
//  4. What was not communicated is not stepped; the paper's hook returns zeros, which decay momentum.
//  5. assignment=balanced, beyond the paper: which iteration sends a shard is chosen so that the longest
//     iteration's communication is as short as can be. The paper's rule sends 36 to 603 ms in Table V without
//     sharding.
//  6. slices=off: cuts lie between tensors, for optimizers that can't step a part of one.
//  7. Several links, each shard on the one where it ends first; fewer of them where that is faster.
#include "schemes/covap.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "schemes/common.h"
#include "schemes/fewer_links.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"
#include "schemes/schedule.h"
#include "solve/balance.h"

namespace gradweave {
namespace {

constexpr std::int64_t kLongestInterval = 1024;
constexpr std::int64_t kBalanceNodes = 20'000;

enum class ShardRule : std::uint8_t { kRoundRobin, kBalanced };

struct CovapOptions {
  std::optional<std::int64_t> interval;  // the paper: ceil(CCR)
  bool sharding = true;
  bool slices = true;
  ShardRule assignment = ShardRule::kRoundRobin;
  double ccr_uncertainty = 0.01;
  Compression compression;
};

std::int64_t elements(const Message& message) {
  std::int64_t sum = 0;
  for (const Slice& slice : message.slices) sum += slice.end - slice.begin;
  return sum;
}

// Returns the end of a tensor in the bucket that is nearest to element `cut`; its beginning counts too.
std::int64_t nearest_end(const Message& bucket, std::int64_t cut) {
  std::int64_t nearest = 0;
  std::int64_t offset = 0;
  for (const Slice& slice : bucket.slices) {
    offset += slice.end - slice.begin;
    if (std::abs(offset - cut) < std::abs(nearest - cut)) nearest = offset;
  }
  return nearest;
}

// Part `part` of `parts` contiguous ones: even, or as even as the ends of tensors allow; then it may be empty.
Message part_of(const Message& bucket, std::int64_t part, std::int64_t parts, bool cuts_tensors) {
  const std::int64_t numel = elements(bucket);
  std::int64_t begin = floor_share(numel, part, parts);
  std::int64_t end = floor_share(numel, part + 1, parts);
  if (!cuts_tensors) {
    begin = nearest_end(bucket, begin);
    end = nearest_end(bucket, end);
  }
  Message shard;
  std::int64_t offset = 0;
  for (const Slice& slice : bucket.slices) {
    const std::int64_t length = slice.end - slice.begin;
    const std::int64_t from = std::clamp<std::int64_t>(begin - offset, 0, length);
    const std::int64_t to = std::clamp<std::int64_t>(end - offset, 0, length);
    if (from < to) shard.slices.push_back({slice.tensor, slice.begin + from, slice.begin + to});
    offset += length;
  }
  return shard;
}

std::vector<Message> shards_of(const std::vector<Message>& buckets, std::int64_t interval,
                               const CovapOptions& options) {
  if (!options.sharding) return buckets;
  std::vector<std::int64_t> numels;
  numels.reserve(buckets.size());
  for (const Message& bucket : buckets) numels.push_back(elements(bucket));
  const std::vector<std::int64_t> parts = covap_parts(numels, interval);
  std::vector<Message> shards;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (std::int64_t p = 0; p < parts[b]; ++p) {
      Message shard = part_of(buckets[b], p, parts[b], options.slices);
      if (!shard.slices.empty()) shards.push_back(std::move(shard));
    }
  }
  return shards;
}

CovapTimes times_of(const CostModel& model, const std::vector<Message>& buckets) {
  double rate = 0;
  for (std::size_t k = 0; k < model.link_count(); ++k) {
    Nanoseconds time = 0;
    for (const Message& bucket : buckets) time += model.all_reduce(k, bucket.slices);
    if (time == 0) return {model.index().forward_total, model.index().backward_total, 0};
    rate += 1 / static_cast<double>(time);
  }
  return {model.index().forward_total, model.index().backward_total, std::llround(1 / rate)};
}

// In which iteration of the period each shard is sent.
std::vector<std::int32_t> assign(const CostModel& model, const std::vector<Message>& shards,
                                 std::int64_t interval, ShardRule rule) {
  if (rule == ShardRule::kRoundRobin) return covap_round_robin(shards.size(), interval);
  std::vector<std::int64_t> costs;
  costs.reserve(shards.size());
  for (const Message& shard : shards) costs.push_back(model.all_reduce(0, shard.slices));
  return balance(costs, static_cast<std::size_t>(interval), kBalanceNodes).bin;
}

// The iteration's updates: tensors that were sent whole, and parts of tensors.
void add_applies(const CostModel& model, std::span<const std::int32_t> sent, std::span<const Slice> slices,
                 Iteration& iteration) {
  std::vector<std::int64_t> sent_elements(model.index().tensors.size(), 0);
  for (const std::int32_t b : sent) {
    const Slice& slice = slices[static_cast<std::size_t>(b)];
    sent_elements[slice.tensor] += slice.end - slice.begin;
  }
  Apply whole{.at = {.kind = PointKind::kIterationEnd}, .merges = {0}};
  Apply partial = whole;
  partial.slices = true;
  for (const std::int32_t b : sent) {
    const std::size_t tensor = slices[static_cast<std::size_t>(b)].tensor;
    Apply& apply = sent_elements[tensor] == model.index().tensors[tensor].numel ? whole : partial;
    apply.blocks.push_back(b);
  }
  if (!whole.blocks.empty()) iteration.applies.push_back(std::move(whole));
  if (!partial.blocks.empty()) iteration.applies.push_back(std::move(partial));
}

Plan filtered_plan(const CostModel& model, const std::vector<Message>& shards, std::int64_t interval,
                   const std::vector<std::int32_t>& assignment) {
  Plan plan = new_plan(model, static_cast<std::size_t>(interval));
  plan.residual = covap_residual(interval);
  std::vector<std::vector<std::int32_t>> blocks;
  std::vector<Slice> slices;
  for (const Message& shard : shards) {
    blocks.push_back(add_blocks(plan, model, shard.slices));
    slices.insert(slices.end(), shard.slices.begin(), shard.slices.end());
  }
  for (std::size_t n = 0; n < plan.period.size(); ++n) {
    Iteration& iteration = plan.period[n];
    std::vector<Message> messages;
    std::vector<std::int32_t> sent;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      if (assignment[i] != static_cast<std::int32_t>(n)) {
        iteration.dropped.insert(iteration.dropped.end(), blocks[i].begin(), blocks[i].end());
        continue;
      }
      messages.push_back(shards[i]);
      iteration.ops.push_back(
          {.blocks = blocks[i], .merges = {0}, .release = release_when_ready(model, shards[i].slices)});
      sent.insert(sent.end(), blocks[i].begin(), blocks[i].end());
    }
    std::vector<ScheduledOp> scheduled = scheduled_when_ready(model, messages);
    assign_links_greedily(model, scheduled);
    for (std::size_t i = 0; i < scheduled.size(); ++i) {
      iteration.ops[i].link = plan.links[scheduled[i].link].name;
    }
    add_applies(model, sent, slices, iteration);
  }
  return plan;
}

PlanResult plan_on_all_links(const Workload& workload, const Cluster& cluster, const CovapOptions& options) {
  const CostModel model(workload, cluster, options.compression);
  const std::vector<Message> buckets = ddp_buckets(model);  // III.A
  std::int64_t interval = options.interval.value_or(
      covap_interval(covap_ccr(times_of(model, buckets)), options.ccr_uncertainty, kLongestInterval));
  // Fewer shards lower the interval, and a lower interval may make fewer shards.
  std::vector<Message> shards = shards_of(buckets, interval, options);
  while (static_cast<std::int64_t>(shards.size()) < interval) {
    interval = std::max<std::int64_t>(1, static_cast<std::int64_t>(shards.size()));
    if (shards.empty()) break;
    shards = shards_of(buckets, interval, options);
  }
  return filtered_plan(model, shards, interval, assign(model, shards, interval, options.assignment));
}

// More links lower the CCR and with it the interval, so that more is sent: where that takes longer, and where
// a bucket ends later for being on a slow link, fewer links are used.
PlanResult plan_covap(const Workload& workload, const Cluster& cluster, const CovapOptions& options) {
  return fastest_over_links(
      workload, cluster, [&](const Cluster& links) { return plan_on_all_links(workload, links, options); },
      options.compression);
}

}  // namespace

double covap_ccr(const CovapTimes& times) {
  if (times.communication == 0) return 0;
  if (times.computation == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(times.communication) / static_cast<double>(times.computation);
}

double covap_linear_scaling_speedup(const CovapTimes& times) {
  const double computing = static_cast<double>(times.before + times.computation);
  return (computing + static_cast<double>(times.communication)) / computing;
}

double covap_overlap_speedup(const CovapTimes& times) {
  const double overlapped =
      static_cast<double>(times.before + std::max(times.computation, times.communication));
  return static_cast<double>(times.before + times.computation + times.communication) / overlapped;
}

double covap_overlap_speedup_over_one(const CovapTimes& times, std::int64_t workers) {
  const double overlapped =
      static_cast<double>(times.before + std::max(times.computation, times.communication));
  return static_cast<double>(workers) * static_cast<double>(times.before + times.computation) / overlapped;
}

std::int64_t covap_interval(double ccr, double uncertainty, std::int64_t most) {
  const double lowest = std::ceil(ccr * (1 - uncertainty));
  if (lowest >= static_cast<double>(most)) return most;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(lowest));
}

std::vector<std::int64_t> covap_parts(std::span<const std::int64_t> numels, std::int64_t interval) {
  if (numels.empty()) return {};
  std::vector<std::int64_t> sorted(numels.begin(), numels.end());
  std::ranges::sort(sorted);
  // Twice the median, so that a half stays exact.
  const std::int64_t twice_median = sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2];
  std::vector<std::int64_t> parts;
  for (const std::int64_t numel : numels)
    parts.push_back(std::clamp<std::int64_t>(2 * numel / twice_median, 1, interval));
  return parts;
}

std::vector<std::int32_t> covap_round_robin(std::size_t shards, std::int64_t interval) {
  std::vector<std::int32_t> iteration;
  for (std::size_t i = 0; i < shards; ++i) {
    const std::int64_t residue = static_cast<std::int64_t>(i) % interval;
    iteration.push_back(static_cast<std::int32_t>((interval - residue) % interval));
  }
  return iteration;
}

Residual covap_residual(std::int64_t interval) {
  if (interval == 1) return {};
  if (interval <= 8) return {.enabled = true, .initial = 0.5, .step = 0.1, .cap = 1, .every = 50};
  return {.enabled = true, .initial = 0.2, .step = 0.1, .cap = 1, .every = 100};
}

SchemeInfo covap_scheme() {
  return scheme_row<CovapOptions>(
      {.name = "covap",
       .summary = "each part of the gradient every I-th iteration, the rest into a residual",
       .paper = "COVAP, 2023",
       .effect = Effect::kCompressed},
      {option(&CovapOptions::interval,
              {.name = "interval",
               .unit = Unit::kIterations,
               .default_source = "COVAP III.B: ceil(CCR), at most the number of shards",
               .minimum = 1,
               .maximum = static_cast<double>(kLongestInterval),
               .meaning = "each shard is sent once in this many iterations"}),
       option(&CovapOptions::sharding, {.name = "sharding",
                                        .default_source = "COVAP III.C",
                                        .meaning = "cut tensors that are larger than the median"}),
       option(
           &CovapOptions::slices,
           {.name = "slices",
            .default_source = "COVAP III.C",
            .meaning = "cut within tensors, for optimizers that work element by element; off: between them"}),
       option(&CovapOptions::assignment,
              {{"round_robin", ShardRule::kRoundRobin}, {"balanced", ShardRule::kBalanced}},
              {.name = "assignment",
               .default_source = "COVAP III.A",
               .meaning = "which iteration sends a shard: by its number, or so that the longest iteration is "
                          "shortest"}),
       option(&CovapOptions::ccr_uncertainty,
              {.name = "ccr_uncertainty",
               .unit = Unit::kShare,
               .default_source = "COVAP takes 4 for ceil(842 / 210) = 5",
               .minimum = 0,
               .maximum = 0.5,
               .meaning = "a CCR above an integer by less than this counts as that integer"})},
      plan_covap);
}

}  // namespace gradweave
