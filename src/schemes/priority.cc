#include "schemes/priority.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "gradweave/error.h"

namespace gradweave {
namespace {

struct Ended {
  Nanoseconds end;
  std::size_t link;
  std::int64_t bytes;
  friend auto operator<=>(const Ended&, const Ended&) = default;
};

template <typename T>
using SmallestFirst = std::priority_queue<T, std::vector<T>, std::greater<T>>;

}  // namespace

std::vector<Slice> priority_slices(const CostModel& model, std::int64_t partition_bytes,
                                   Partition partition) {
  const WorkloadIndex& index = model.index();
  std::int64_t total = 0;
  const auto elements_per_slice = [&](std::size_t t) {
    return std::max<std::int64_t>(1, partition_bytes / size_of(index.tensors[t].dtype));
  };
  const auto count = [&](std::size_t t) {
    return (index.tensors[t].numel + elements_per_slice(t) - 1) / elements_per_slice(t);
  };
  for (std::size_t t = 0; t < index.tensors.size(); ++t) {
    total += count(t);
    if (total > kMaxSlices) {
      throw InvalidInput("it cuts the model into more than " + std::to_string(kMaxSlices) + " slices",
                         "option partition_bytes", "give a larger value");
    }
  }
  std::vector<Slice> slices;
  slices.reserve(static_cast<std::size_t>(total));
  for (std::size_t t = 0; t < index.tensors.size(); ++t) {
    const std::int64_t numel = index.tensors[t].numel;
    const std::int64_t pieces = count(t);
    for (std::int64_t i = 0; i < pieces; ++i) {
      const std::int64_t begin =
          partition == Partition::kEven ? floor_share(numel, i, pieces) : i * elements_per_slice(t);
      const std::int64_t end = partition == Partition::kEven ? floor_share(numel, i + 1, pieces)
                                                             : std::min(numel, begin + elements_per_slice(t));
      slices.push_back({t, begin, end});
    }
  }
  return slices;
}

std::vector<ScheduledOp> issue_by_priority(const CostModel& model, const std::vector<Slice>& slices,
                                           std::int64_t credit_bytes) {
  const WorkloadIndex& index = model.index();
  const std::vector<Link>& links = model.cluster().links;
  std::vector<Nanoseconds> free(links.size(), 0);
  std::vector<std::int64_t> credit(links.size(), credit_bytes);
  SmallestFirst<std::size_t> waiting;  // places in `slices`
  SmallestFirst<Ended> in_flight;
  std::vector<std::vector<std::size_t>> slices_of_layer(index.layer_count);
  for (std::size_t s = 0; s < slices.size(); ++s)
    slices_of_layer[index.tensors[slices[s].tensor].layer].push_back(s);

  // On a shared link start-ups overlap with the work of others.
  const auto end_on = [&](std::size_t k, const Slice& slice, Nanoseconds now) {
    const OpCost cost = model.cost(k, Collective::kAllReduce, std::span(&slice, 1));
    if (links[k].concurrency == 1) return std::max(free[k], now) + cost.total();
    return std::max(free[k], now + cost.startup) + cost.work;
  };
  std::vector<ScheduledOp> ops;
  ops.reserve(slices.size());
  const auto issue = [&](Nanoseconds now) {
    while (!waiting.empty()) {
      const Slice& slice = slices[waiting.top()];
      std::size_t best = 0;
      Nanoseconds best_end = end_on(0, slice, now);
      for (std::size_t k = 1; k < links.size(); ++k) {
        const Nanoseconds end = end_on(k, slice, now);
        if (end < best_end) {
          best = k;
          best_end = end;
        }
      }
      if (credit[best] <= 0) return;
      waiting.pop();
      const std::int64_t bytes = model.bytes(std::span(&slice, 1));
      const std::size_t layer = index.tensors[slice.tensor].layer;
      credit[best] -= bytes;
      free[best] = best_end;
      in_flight.push({best_end, best, bytes});
      ops.push_back({.slices = {slice}, .link = best, .ready_layer = layer, .needed_by = layer});
    }
  };
  std::size_t next_layer = index.layer_count;  // layers below it are not ready yet
  while (next_layer > 0 || !in_flight.empty()) {
    Nanoseconds now = std::numeric_limits<Nanoseconds>::max();
    if (next_layer > 0) now = index.backward_end[next_layer - 1] - index.forward_total;
    if (!in_flight.empty()) now = std::min(now, in_flight.top().end);
    while (next_layer > 0 && index.backward_end[next_layer - 1] - index.forward_total <= now) {
      for (std::size_t s : slices_of_layer[--next_layer]) waiting.push(s);
    }
    while (!in_flight.empty() && in_flight.top().end <= now) {
      credit[in_flight.top().link] += in_flight.top().bytes;
      in_flight.pop();
    }
    issue(now);
  }
  return ops;
}

std::int64_t slices_in_flight(std::int64_t partition_bytes, std::int64_t credit_bytes) {
  return std::min(1 + (credit_bytes - 1) / partition_bytes, kMaxSlices);
}

}  // namespace gradweave
