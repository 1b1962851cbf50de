// DeAR: all-reduce is decoupled; reduce-scatter overlaps with backward, all-gather with the next forward.
//
// L. Zhang et al., "DeAR: Accelerating distributed deep learning with fine-grained all-reduce pipelining",
// ICDCS 2023. Neighbouring layers form groups of at most x bytes, in backward order; a group has one
// reduce_scatter and one all_gather of the same message, which cost what one all_reduce costs (Eq. 5).
//   BackPipe: reduce_scatter of group g as soon as its gradients exist, in backward order
//   FeedPipe: all_gather in layer order; a layer's next forward waits for its own group's
//   x minimises the iteration time: Bayesian optimisation over 1..100 MB, first trial 25 MB, EI with xi = 0.1;
//   models below 80 MB, whose fusions all lie within that range's low end, have it scaled down to 1.25 times the model
// Complexity: O(layers) a trial on one link.
// Deviations: the authors launch the next all-gather when the previous layer's forward starts; here each is
// issued as soon as its link is free and all reduce-scatters before it are over. The paper tunes on the
// running job; here a trial is an exact evaluation of the plan (schedule.h), and tune.h does as the paper does. A group with several dtypes
// sends one message for each. Several links (links.cc): a group's two ops share a link; the first link, the
// first two, ... compete. Shared links: one op at a time, unless sharing is faster.
#include "schemes/dear.h"

#include <algorithm>
#include <cmath>

#include "gradweave/error.h"
#include "schemes/common.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"
#include "schemes/schedule.h"
#include "solve/bayesian.h"

namespace gradweave {

double dear_max_speedup(std::int64_t workers, const DearTimes& t) {
  const double compute = t.forward + t.backward;
  const double hidden = std::min(t.reduce_scatter, t.backward) + std::min(t.all_gather, t.forward);
  return static_cast<double>(workers) * compute / (compute + t.reduce_scatter + t.all_gather - hidden);
}

double dear_ideal_iteration(const DearTimes& t) {
  return std::max(t.forward, t.all_gather) + std::max(t.backward, t.reduce_scatter);
}

double baseline_ideal_iteration(const DearTimes& t) {
  return t.forward + std::max(t.backward, t.reduce_scatter + t.all_gather);
}

double dear_ideal_gain(double forward, double all_gather) {
  if (all_gather <= forward) return 0;
  return std::min(all_gather - forward, forward);
}

namespace {

constexpr TunedRange kBuffers{1e6, 100e6};
constexpr double kFirstBuffer = 25e6, kLeastBuffer = 1;

struct DearOptions {
  std::optional<std::int64_t> buffer_bytes, layers_per_group;  // one of them at most
  std::int64_t seed = 0;
  Compression compression;
};

struct Group {
  std::vector<Slice> slices;
  std::int64_t bytes = 0;
  std::int64_t layers = 0;
};

// Groups neighbouring layers in backward order while a group keeps to both limits; a larger layer is alone.
std::vector<Group> group_layers(const CostModel& model, std::int64_t buffer_bytes,
                                std::int64_t layers_per_group) {
  const WorkloadIndex& index = model.index();
  std::vector<Group> groups;
  for (std::size_t l = index.layer_count; l-- > 0;) {
    Group layer{.layers = 1};
    for (std::size_t t = index.first_tensor[l + 1]; t-- > index.first_tensor[l];) {
      layer.slices.push_back({t, 0, index.tensors[t].numel});
      layer.bytes += index.tensor_bytes(t);
    }
    if (layer.slices.empty()) continue;
    if (groups.empty() || groups.back().bytes + layer.bytes > buffer_bytes ||
        groups.back().layers == layers_per_group) {
      groups.push_back(std::move(layer));
      continue;
    }
    Group& last = groups.back();
    last.slices.insert(last.slices.end(), layer.slices.begin(), layer.slices.end());
    last.bytes += layer.bytes;
    ++last.layers;
  }
  return groups;
}

std::vector<ScheduledOp> pipeline(const CostModel& model, const std::vector<Group>& groups) {
  std::vector<ScheduledOp> ops;
  for (const Group& group : groups) {
    for (Message& message : split_by_dtype(model, group.slices)) {
      const std::size_t layer = last_ready_layer(model, message.slices);
      ops.push_back({.slices = std::move(message.slices),
                     .collective = Collective::kReduceScatter,
                     .ready_layer = layer,
                     .needed_by = kNobody});
    }
  }
  for (std::size_t g = ops.size(); g-- > 0;) {
    ScheduledOp gather{.slices = ops[g].slices, .collective = Collective::kAllGather, .after = g};
    gather.needed_by = last_ready_layer(model, gather.slices);
    ops.push_back(std::move(gather));
  }
  return ops;
}

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max() / 2;

std::int64_t tuned_buffer(const CostModel& model, std::int64_t seed) {
  const TunedRange range = scaled_to_model(kBuffers, kLeastBuffer, model.index().total_bytes);
  const std::int64_t low = std::llround(range.low), high = std::llround(range.high);
  const std::int64_t first = std::llround(kFirstBuffer * range.high / kBuffers.high);
  const auto buffer_at = [&](const CubePoint& point) { return from_log_scale(point[0], low, high); };
  const BayesianOptions options{.seed = static_cast<std::uint64_t>(seed),
                                .first = {{to_log_scale(std::clamp(first, low, high), low, high)}},
                                .stop_at = static_cast<double>(model.index().compute_total)};
  const BayesianResult result = minimise(
      [&](const CubePoint& point) {
        std::vector<ScheduledOp> ops = pipeline(model, group_layers(model, buffer_at(point), kNoLimit));
        assign_links_greedily(model, ops);
        return static_cast<double>(iteration_time(model, ops));
      },
      1, options);
  return buffer_at(result.point);
}

struct Tuned {
  Plan plan;
  Nanoseconds iteration;
};

Tuned plan_of(const CostModel& model, const DearOptions& options) {
  std::optional<std::int64_t> buffer = options.buffer_bytes;
  if (!buffer && !options.layers_per_group) buffer = tuned_buffer(model, options.seed);
  std::vector<ScheduledOp> ops = pipeline(
      model, group_layers(model, buffer.value_or(kNoLimit), options.layers_per_group.value_or(kNoLimit)));
  assign_links(model, ops);
  Tuned tuned{overlapped_plan(model, ops), iteration_time(model, ops)};
  if (buffer) tuned.plan.options["buffer_bytes"] = std::to_string(*buffer);
  return tuned;
}

void check_dear(const DearOptions& options) {
  if (options.buffer_bytes && options.layers_per_group) {
    throw InvalidInput("buffer_bytes and layers_per_group exclude each other", "options of dear",
                       "give one of them");
  }
}

PlanResult plan_dear(const Workload& workload, const Cluster& cluster, const DearOptions& options) {
  const auto plan_on = [&](const Cluster& links) {
    return plan_of(CostModel(workload, links, options.compression), options);
  };
  Tuned best = plan_on(with_concurrency_at_most(cluster, 1));
  const auto compete = [&](const Cluster& links) {
    Tuned other = plan_on(links);
    if (other.iteration < best.iteration) best = std::move(other);
  };
  for (Cluster links = cluster;; links.links.pop_back()) {
    if (links.links.size() < cluster.links.size()) compete(with_concurrency_at_most(links, 1));
    if (has_shared_link(links)) compete(links);
    if (links.links.size() == 1) return best.plan;
  }
}

}  // namespace

SchemeInfo dear_scheme() {
  return scheme_row<DearOptions>(
      {.name = "dear",
       .summary = "reduce-scatter in backward, all-gather in the next forward",
       .paper = "DeAR, ICDCS 2023",
       .effect = Effect::kExact},
      {option(&DearOptions::buffer_bytes,
              {.name = "buffer_bytes",
               .unit = Unit::kBytes,
               .default_source =
                   "tuned in 1..100 MB from 25 MB on, as in DeAR, section IV; less for models below 80 MB",
               .minimum = kLeastBuffer,
               .maximum = 0x1p53,
               .meaning = "neighbouring layers are fused up to this size",
               .tuned = kBuffers}),
       option(&DearOptions::layers_per_group,
              {.name = "layers_per_group",
               .unit = Unit::kLayers,
               .default_source = "not used unless given; DeAR's comparison has 4",
               .minimum = 1,
               .maximum = 0x1p53,
               .meaning = "this many neighbouring layers are fused, whatever their size"}),
       option(&DearOptions::seed, seed_option())},
      plan_dear, check_dear);
}

}  // namespace gradweave
