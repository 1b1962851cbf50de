// PyTorch DistributedDataParallel's buckets.
//
// S. Li et al., "PyTorch Distributed", VLDB 2020, and torch 2.13's compute_bucket_assignment_by_size: tensors
// in reverse parameter order; a bucket closes when its size reaches or exceeds its cap; the first bucket's
// cap is first_bucket_bytes, every later one's bucket_cap_bytes; each dtype fills buckets of its own, with
// caps of its own. Buckets are reduced in the order in which they close, each when its last gradient is
// ready. Complexity: O(tensors) on one link. Deviations: several links (links.cc); buckets that are still
// open at the end go in the order of their first tensor (PyTorch leaves that order to a hash table).
#include <algorithm>
#include <array>

#include "schemes/common.h"
#include "schemes/option_table.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

struct DdpOptions {
  std::int64_t bucket_cap_bytes = 26'214'400;   // 25 MiB
  std::int64_t first_bucket_bytes = 1'048'576;  // 1 MiB
  Compression compression;
};

std::vector<Message> buckets_of(const CostModel& model, const DdpOptions& options) {
  struct Open {
    Message message;
    std::int64_t bytes = 0;
    bool first = true;
  };
  std::array<Open, 16> open_by_dtype{};
  std::vector<Message> buckets;
  for (const Slice& slice : tensors_in_backward_order(model)) {
    Open& open = open_by_dtype[static_cast<std::size_t>(model.index().tensors[slice.tensor].dtype)];
    open.message.slices.push_back(slice);
    open.bytes += model.index().tensor_bytes(slice.tensor);
    if (open.bytes >= (open.first ? options.first_bucket_bytes : options.bucket_cap_bytes)) {
      buckets.push_back(std::move(open.message));
      open = Open{.first = false};
    }
  }
  std::vector<Message> left;
  for (Open& open : open_by_dtype) {
    if (!open.message.slices.empty()) left.push_back(std::move(open.message));
  }
  std::ranges::sort(left, std::greater<>(),
                    [](const Message& message) { return message.slices.front().tensor; });
  std::ranges::move(left, std::back_inserter(buckets));
  return buckets;
}

PlanResult plan_ddp(const Workload& workload, const Cluster& cluster, const DdpOptions& options) {
  const CostModel model(workload, cluster, options.compression);
  const std::vector<Message> buckets = buckets_of(model, options);
  std::vector<Release> releases;
  for (const Message& bucket : buckets) {
    releases.push_back(release_when_ready(model, bucket.slices));
  }
  return synchronous_plan(model, buckets, releases);
}

}  // namespace

std::vector<Message> ddp_buckets(const CostModel& model) { return buckets_of(model, {}); }

SchemeInfo ddp_scheme() {
  return scheme_row<DdpOptions>(
      {.name = "ddp",
       .summary = "PyTorch's buckets",
       .paper = "PyTorch Distributed, VLDB 2020",
       .effect = Effect::kExact},
      {option(&DdpOptions::bucket_cap_bytes, {.name = "bucket_cap_bytes",
                                              .unit = Unit::kBytes,
                                              .default_source = "torch, bucket_cap_mb = 25",
                                              .minimum = 1,
                                              .maximum = 0x1p53,
                                              .meaning = "a bucket closes when it holds this much",
                                              .tuned = TunedRange{1'000'000, 100'000'000}}),
       option(&DdpOptions::first_bucket_bytes, {.name = "first_bucket_bytes",
                                                .unit = Unit::kBytes,
                                                .default_source = "torch, _DEFAULT_FIRST_BUCKET_BYTES",
                                                .minimum = 1,
                                                .maximum = 0x1p53,
                                                .meaning = "the same for the first bucket"})},
      plan_ddp);
}

}  // namespace gradweave
