// P3: tensors cut into slices of a fixed size, the slices of early layers first.
//
// A. Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", MLSys 2019. A
// slice's priority is the place of its layer in forward; whenever a link is free it takes the most urgent
// slice that is ready. A layer's next forward waits for its own slices alone. The rule, run on the profile,
// gives a static order (priority.h). Complexity: O(slices log slices) on one link. Deviations: the paper's
// parameter server becomes all-reduce, one start-up for each slice; its 50,000 parameters are 200,000 bytes
// of float32. Several links: each slice where it would end first, improved by local search (links.cc).
#include "schemes/common.h"
#include "schemes/option_table.h"
#include "schemes/priority.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

struct P3Options {
  std::int64_t partition_bytes = 200'000;
  std::int64_t credit_bytes = 1;
  Compression compression;
};

PlanResult plan_p3(const Workload& workload, const Cluster& cluster, const P3Options& options) {
  const CostModel model(
      workload,
      with_concurrency_at_most(cluster, slices_in_flight(options.partition_bytes, options.credit_bytes)),
      options.compression);
  std::vector<ScheduledOp> ops = issue_by_priority(
      model, priority_slices(model, options.partition_bytes, Partition::kFixed), options.credit_bytes);
  improve_links(model, ops);
  return overlapped_plan(model, ops);
}

}  // namespace

SchemeInfo p3_scheme() {
  return scheme_row<P3Options>(
      {.name = "p3",
       .summary = "slices of a fixed size, early layers first",
       .paper = "P3, MLSys 2019",
       .effect = Effect::kExact},
      {option(&P3Options::partition_bytes, {.name = "partition_bytes",
                                            .unit = Unit::kBytes,
                                            .default_source = "P3: 50,000 parameters",
                                            .minimum = 1,
                                            .maximum = 0x1p53,
                                            .meaning = "size of a slice",
                                            .tuned = TunedRange{100'000, 100'000'000}}),
       option(&P3Options::credit_bytes,
              {.name = "credit_bytes",
               .unit = Unit::kBytes,
               .default_source = "P3: one slice at a time",
               .minimum = 1,
               .maximum = 0x1p53,
               .meaning = "slices are issued on a link while fewer bytes than this are in flight"})},
      plan_p3);
}

}  // namespace gradweave
