// The validator's view of a plan: names resolved to indices, and iterations unrolled as far as merges reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gradweave/plan.h"
#include "gradweave/validate.h"
#include "gradweave/workload.h"

namespace gradweave {

// Collects violations, at most kMaxViolations, and hands them out in plan order.
class Report {
 public:
  // `place` orders the violations: -1 for blocks and links, else the slot of the iteration.
  void add(int rule, std::int64_t place, std::string what, std::string where, std::string remedy);
  bool full() const { return entries_.size() >= kMaxViolations; }
  bool empty() const { return entries_.empty(); }
  std::vector<Violation> take();

 private:
  struct Entry {
    std::int64_t place;
    Violation violation;
  };
  std::vector<Entry> entries_;
};

struct KnownBlock {
  bool known = false;  // names a slice of a tensor of the workload; if not, only rule 1 speaks of it
  std::size_t tensor = 0;
  std::int32_t layer = 0;
  std::int64_t bytes = 0;
};

struct KnownOp {
  const Op* op = nullptr;
  std::int32_t link = -1;            // index into Plan::links; -1: unknown
  std::vector<std::int32_t> blocks;  // those of op->blocks that are known
  std::vector<std::int32_t> merges;  // sorted, distinct, <= 0
  std::int64_t release = 0;          // position of the release point in its iteration
  std::int32_t first_layer = 0;      // the smallest layer of its blocks: the one whose gradient comes last
  // Takes part in rule 3 as the second half.
  bool gathers() const { return op->collective == Collective::kAllGather; }
};

struct KnownApply {
  const Apply* apply = nullptr;
  std::vector<std::int32_t> blocks, merges;
  std::int64_t at = 0;    // position of the point
  std::int64_t rank = 0;  // place among the applies of its iteration, by (at, place in the list)
};

struct KnownIteration {
  std::vector<KnownOp> ops;
  std::vector<KnownApply> applies;
  std::vector<std::int32_t> dropped;
  std::vector<std::int64_t> apply_positions;  // `at` of the applies, by rank
  std::vector<std::int32_t> apply_by_rank;
};

class FormCheck;
using LinkNumbers = std::unordered_map<std::string_view, std::int32_t>;

// A slot is an iteration as it is written: prologue first, then the period. Executed iterations 0, 1, ... run
// through the slots. Positions number the points of an iteration in the order in which they pass; a moment
// numbers the positions of all iterations.
//
// Every relation between ops and applies repeats with the period from iteration prologue + reach on, where
// `merges` no longer meets the start. So gradients of iterations [0, checked) are checked, checked = prologue
// + reach + period, and iterations [0, horizon) are unrolled, horizon = checked + reach, in which these
// gradients are used.
//
// The ops and the applies of the unrolled iterations are numbered: ops as they are listed, applies as they
// pass.
class Unrolled {
 public:
  // Resolves and reports rules 1 and 7. The plan and the index must outlive the object.
  Unrolled(const Plan& plan, const WorkloadIndex& index, const Cluster* cluster, Report& report);

  const Plan& plan;
  const WorkloadIndex& index;
  std::vector<KnownBlock> blocks;
  std::vector<KnownIteration> slots;
  std::int64_t prologue = 0, period = 0, reach = 0, checked = 0, horizon = 0;
  bool checkable = false;  // there is a period, and the unrolled plan is of a size that can be gone through

  std::size_t slot_of(std::int64_t iteration) const;
  const KnownIteration& iteration(std::int64_t n) const { return slots[slot_of(n)]; }
  // The next iteration after n that runs n's slot; horizon or more if there is none.
  std::int64_t next(std::int64_t n) const { return n < prologue ? horizon : n + period; }

  std::int64_t positions() const { return 3 * layers_ + 3; }
  std::int64_t backward_end(std::int64_t layer) const { return 3 * layers_ + 1 - layer; }
  std::int64_t iteration_end() const { return 3 * layers_ + 2; }
  std::int64_t moment(std::int64_t n, std::int64_t position) const { return n * positions() + position; }

  std::int64_t op_count() const { return first_op_.back(); }
  std::int64_t op_number(std::int64_t n, std::size_t k) const {
    return first_op_[index_of(n)] + static_cast<std::int64_t>(k);
  }
  std::int64_t apply_number(std::int64_t n, std::size_t k) const;
  // How many applies pass before, or at, a position of iteration n.
  std::int64_t applies_before(std::int64_t n, std::int64_t position) const;
  std::int64_t applies_until(std::int64_t n, std::int64_t position) const;

  struct Place {
    std::int64_t iteration = 0;
    std::size_t item = 0;  // in the iteration's list
  };
  Place op_place(std::int64_t number) const;
  Place apply_place(std::int64_t number) const;
  const KnownOp& op(std::int64_t number) const;
  const KnownApply& apply(std::int64_t number) const;
  std::int64_t apply_moment(std::int64_t number) const;

  // Names for messages: "period[2].ops[5]", "block 7 (conv1.weight[0:4096])", "forward_start(3)".
  std::string slot_name(std::size_t slot) const;
  std::string op_name(std::int64_t number) const;
  std::string apply_name(std::int64_t number) const;
  std::string block_name(std::int32_t block) const;
  std::string point_name(const Point& point) const;

 private:
  KnownOp resolve(const Op& op, const LinkNumbers& links, FormCheck& form) const;
  KnownApply resolve(const Apply& apply, FormCheck& form) const;
  void resolve_slot(std::size_t slot, const Iteration& iteration, const LinkNumbers& links, Report& report);
  void measure(Report& report);
  static std::size_t index_of(std::int64_t n) { return static_cast<std::size_t>(n); }

  std::int64_t layers_ = 0;
  std::vector<std::int64_t> first_op_, first_apply_;  // per iteration of [0, horizon]
};

// Rule 1: resolves the plan's blocks and reports what keeps them from partitioning the tensors.
std::vector<KnownBlock> resolve_blocks(const Plan& plan, const WorkloadIndex& index, Report& report);

// Rule 3. Returns, for each op, the number of the op whose end completes it: itself or its all_gather; -1 if
// there is none.
std::vector<std::int64_t> check_pairs(const Unrolled& unrolled, Report& report);

// Who waits for whom, as rules 2, 4 and 6 find it.
struct Waits {
  std::vector<std::pair<std::int64_t, std::int64_t>> results;  // (apply, op whose result it uses)
  std::vector<std::int64_t> value_after;  // per op: 1 + the number of the apply whose value it reads; 0: none
};

// The parts of rules 4 and 6 that an apply alone can break.
void check_applies(const Unrolled& unrolled, Report& report);

// Rules 2, 4 and 6, and what of rule 5 concerns values, block by block, and the facts.
Waits check_blocks(const Unrolled& unrolled, const std::vector<std::int64_t>& completed_by, Report& report,
                   PlanFacts& facts);

// Rule 5, and the launch order of rule 7.
void check_waits(const Unrolled& unrolled, const std::vector<std::int64_t>& completed_by, const Waits& waits,
                 Report& report);

}  // namespace gradweave
