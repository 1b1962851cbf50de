// ByteScheduler: tensors above the partition size are cut evenly, early layers go first, a credit bounds what
// is in flight; both sizes are tuned.
//
// Y. Peng et al., "A generic communication scheduler for distributed DNN training acceleration", SOSP 2019.
//   parts(l) = ceil(bytes(l) / partition_bytes), as equal as elements allow
//   priority = (layer, part), smallest first
//   issue while credit > 0; an issued part takes its bytes off the credit until it has ended
// There is no barrier between iterations: a layer's forward waits for its own parts alone. Partition and
// credit minimise the iteration time by Bayesian optimisation with expected improvement, xi = 0.1
// (solve/bayesian.h). Complexity: O(parts log parts) a trial on one link. Deviations: the dynamic rule is run
// on the profile and becomes a static order, the same on every rank (priority.h). The paper tunes on the
// running job; here a trial is an exact evaluation of the plan (schedule.h), and tune.h does as the paper does:
// its authors' tuner looks at 2 to 32 million parameters for the partition and 4 to 64 million for the credit of
// all-reduce; here from 1 MB on, below the defaults. Trials are limited to partitions
// that cut the model into about 4000 parts. The credit holds for each link by itself; on a shared link the
// plan's concurrency is the number of parts that it allows. Several links: each part where it would end
// first, improved by local search (links.cc).
#include <algorithm>

#include "schemes/common.h"
#include "schemes/option_table.h"
#include "schemes/priority.h"
#include "schemes/registry.h"
#include "solve/bayesian.h"

namespace gradweave {
namespace {

constexpr std::int64_t kMostInFlight = 64;  // in flight, in trials

enum class SizeTuning : std::uint8_t { kBayesian, kNone };

struct ByteSchedulerOptions {
  std::optional<std::int64_t> partition_bytes, credit_bytes;
  SizeTuning tune = SizeTuning::kBayesian;
  std::int64_t seed = 0;
  Compression compression;
};

struct Sizes {
  std::int64_t partition_bytes = 4'000'000;  // BYTESCHEDULER_PARTITION: 1,000,000 parameters
  std::int64_t credit_bytes = 16'000'000;    // BYTESCHEDULER_CREDIT: 4,000,000 parameters
};

struct Issued {
  CostModel model;  // with the concurrency that the credit allows
  std::vector<ScheduledOp> ops;
};

Issued issue(const Workload& workload, const Cluster& cluster, const Compression& compression, Sizes sizes) {
  const std::int64_t in_flight = slices_in_flight(sizes.partition_bytes, sizes.credit_bytes);
  CostModel model(workload, with_concurrency_at_most(cluster, in_flight), compression);
  std::vector<ScheduledOp> ops = issue_by_priority(
      model, priority_slices(model, sizes.partition_bytes, Partition::kEven), sizes.credit_bytes);
  return {std::move(model), std::move(ops)};
}

// Returns the best sizes; those that the user has set stay.
Sizes tuned(const Workload& workload, const Cluster& cluster, const Sizes& start,
            const ByteSchedulerOptions& set) {
  const WorkloadIndex index(workload);
  const std::int64_t high = std::max<std::int64_t>(index.total_bytes, start.partition_bytes);
  const std::int64_t low =
      std::min<std::int64_t>(std::max<std::int64_t>(index.total_bytes / 4000, 65536), high);
  const auto sizes_at = [&](const CubePoint& point) {
    Sizes sizes = start;
    std::size_t d = 0;
    if (!set.partition_bytes) sizes.partition_bytes = from_log_scale(point[d++], low, high);
    // Enough for 1 to kMostInFlight parts in flight: while any credit is left, one more is issued.
    if (!set.credit_bytes)
      sizes.credit_bytes = 1 + sizes.partition_bytes * (from_log_scale(point[d], 1, kMostInFlight) - 1);
    return sizes;
  };
  BayesianOptions options{.seed = static_cast<std::uint64_t>(set.seed),
                          .stop_at = static_cast<double>(index.compute_total)};
  CubePoint first;
  if (!set.partition_bytes)
    first.push_back(to_log_scale(std::clamp(start.partition_bytes, low, high), low, high));
  if (!set.credit_bytes) first.push_back(0);
  options.first.push_back(first);
  const BayesianResult result = minimise(
      [&](const CubePoint& point) {
        const Issued issued = issue(workload, cluster, set.compression, sizes_at(point));
        return static_cast<double>(iteration_time(issued.model, issued.ops));
      },
      static_cast<int>(first.size()), options);
  return sizes_at(result.point);
}

PlanResult plan_bytescheduler(const Workload& workload, const Cluster& cluster,
                              const ByteSchedulerOptions& options) {
  Sizes sizes;
  sizes.partition_bytes = options.partition_bytes.value_or(sizes.partition_bytes);
  sizes.credit_bytes = options.credit_bytes.value_or(sizes.credit_bytes);
  const bool all_set = options.partition_bytes && options.credit_bytes;
  if (options.tune == SizeTuning::kBayesian && !all_set) sizes = tuned(workload, cluster, sizes, options);
  Issued issued = issue(workload, cluster, options.compression, sizes);
  improve_links(issued.model, issued.ops);
  Plan plan = overlapped_plan(issued.model, issued.ops);
  plan.options["partition_bytes"] = std::to_string(sizes.partition_bytes);
  plan.options["credit_bytes"] = std::to_string(sizes.credit_bytes);
  return plan;
}

}  // namespace

SchemeInfo bytescheduler_scheme() {
  using Options = ByteSchedulerOptions;
  return scheme_row<Options>(
      {.name = "bytescheduler",
       .summary = "even parts, early layers first, bytes in flight bounded",
       .paper = "ByteScheduler, SOSP 2019",
       .effect = Effect::kExact},
      {option(&Options::partition_bytes,
              {.name = "partition_bytes",
               .unit = Unit::kBytes,
               .default_source = "tuned; 4000000 with tune=none (BYTESCHEDULER_PARTITION)",
               .minimum = 1,
               .maximum = 0x1p53,
               .meaning = "larger tensors are cut into even parts of at most this",
               .tuned = TunedRange{1'000'000, 128'000'000}}),
       option(&Options::credit_bytes,
              {.name = "credit_bytes",
               .unit = Unit::kBytes,
               .default_source = "tuned; 16000000 with tune=none (BYTESCHEDULER_CREDIT)",
               .minimum = 1,
               .maximum = 0x1p53,
               .meaning = "parts are issued on a link while fewer bytes than this are in flight",
               .tuned = TunedRange{1'000'000, 256'000'000}}),
       option(&Options::tune, {{"bayesian", SizeTuning::kBayesian}, {"none", SizeTuning::kNone}},
              {.name = "tune",
               .default_source = "ByteScheduler, section 5: EI with xi = 0.1",
               .meaning = "how sizes that are not given are found"}),
       option(&Options::seed, seed_option())},
      plan_bytescheduler);
}

}  // namespace gradweave
