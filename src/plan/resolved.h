// A plan as it is listed, its names resolved to indices. The rules of form are checked here alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "gradweave/cost.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"
#include "plan/report.h"

namespace gradweave {

using Indices = std::span<const std::int32_t>;

struct ResolvedBlock {
  bool known = false;  // names a slice of a tensor of the workload; if not, nothing below is set
  Slice slice;
  std::int32_t layer = 0;
  std::int64_t bytes = 0;
};

struct ResolvedOp {
  const Op* op = nullptr;
  std::int32_t link = -1;        // index into Plan::links; -1: unknown
  Level level = Level::kAll;     // of its link
  Indices blocks;                // those of op->blocks that are known
  Indices merges;                // sorted, distinct, <= 0
  std::int64_t release = 0;      // position of the release point in its iteration
  std::int32_t first_layer = 0;  // the smallest layer of its blocks: the one whose gradient comes last
  std::int64_t elements = 0;
  std::int64_t encoded_bytes = 0;  // of a compressed op: one rank's own message, or shard
  bool gathers() const { return op->collective == Collective::kAllGather; }
  bool compressed() const { return !op->compression.name.empty(); }
};

struct ResolvedApply {
  const Apply* apply = nullptr;
  Indices blocks, merges;
  std::int64_t at = 0;    // position of the point
  std::int64_t rank = 0;  // place among the applies of its iteration, by (at, place in the list)
};

struct ResolvedIteration {
  std::vector<ResolvedOp> ops;  // in the order of issue over all links
  std::vector<ResolvedApply> applies;
  Indices dropped;
  std::vector<std::int32_t> apply_by_rank;  // applies in the order in which they pass
};

// Returns whether an op or apply listed in iteration n exists: merges are intersected with the iterations that
// do.
inline bool exists(Indices merges, std::int64_t n) { return !merges.empty() && n + merges.back() >= 0; }

// A slot is an iteration as it is listed: prologue first, then the period. Executed iterations 0, 1, ... run
// through the slots. Positions number the points of an iteration in the order in which they pass.
class ResolvedPlan {
 public:
  // Reports what breaks the rules of form (7, and 1 for names of blocks); where nothing is reported, every block
  // is known and every index in range. `cluster` may be null. The plan and the index must outlive the object.
  // O(size of the plan).
  ResolvedPlan(const Plan& plan, const WorkloadIndex& index, const Cluster* cluster, Report& report);

  const Plan& plan;
  const WorkloadIndex& index;
  std::vector<ResolvedBlock> blocks;
  std::vector<std::size_t>
      cluster_link;  // per plan link, as link_at() numbers them, where a cluster is given
  std::vector<ResolvedIteration> slots;
  std::int64_t prologue = 0, period = 0;
  std::int64_t reach = 0;  // no merge looks back further than this many iterations

  std::size_t slot_of(std::int64_t n) const {
    return static_cast<std::size_t>(n < prologue ? n : prologue + (n - prologue) % period);
  }
  const ResolvedIteration& iteration(std::int64_t n) const { return slots[slot_of(n)]; }
  const ResolvedBlock& block(std::int32_t b) const { return blocks[static_cast<std::size_t>(b)]; }

  std::int64_t positions() const { return 3 * layers_ + 3; }
  std::int64_t backward_end(std::int64_t layer) const { return 3 * layers_ + 1 - layer; }
  std::int64_t iteration_end() const { return 3 * layers_ + 2; }

  // Names for messages: "period[2]", "block 7 (conv1.weight[0:4096])", "forward_start(3)".
  std::string slot_name(std::size_t slot) const;
  std::string block_name(std::int32_t block) const;
  std::string point_name(const Point& point) const;

 private:
  class Reader;

  std::int64_t layers_ = 0;
  std::deque<std::vector<std::int32_t>> repaired_;  // lists without what is wrong with the plan's
};

// Returns the plan resolved. Errors: InvalidInput, the first fault that the constructor reports.
ResolvedPlan resolve(const Plan& plan, const WorkloadIndex& index, const Cluster* cluster);

}  // namespace gradweave
