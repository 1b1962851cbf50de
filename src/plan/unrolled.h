// The validator's view of a plan: its iterations unrolled as far as merges reach, their ops and applies numbered.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gradweave/validate.h"
#include "plan/report.h"
#include "plan/resolved.h"
#include "plan/uses.h"

namespace gradweave {

// A moment numbers the positions of all iterations.
//
// Every relation between ops and applies repeats with the period from iteration prologue + reach on, where
// `merges` no longer meets the start. So gradients of iterations [0, checked) are checked, checked = prologue
// + reach + period, and iterations [0, horizon) are unrolled, horizon = checked + reach, in which these
// gradients are used.
//
// The ops and the applies of the unrolled iterations are numbered: ops as they are listed, applies as they
// pass.
class Unrolled : public ResolvedPlan {
 public:
  // Reports a plan that is too large. The plan and the index must outlive the object.
  Unrolled(ResolvedPlan resolved, Report& report);

  std::int64_t checked = 0, horizon = 0;
  bool checkable = false;  // there is a period, and the unrolled plan is of a size that can be gone through

  std::int64_t moment(std::int64_t n, std::int64_t position) const { return n * positions() + position; }

  std::int64_t op_count() const { return first_op_.back(); }
  std::int64_t op_number(std::int64_t n, std::size_t k) const {
    return first_op_[index_of(n)] + static_cast<std::int64_t>(k);
  }
  std::int64_t apply_number(std::int64_t n, std::size_t k) const;
  // How many applies pass before, or until, a position of iteration n.
  std::int64_t applies_before(std::int64_t n, std::int64_t position) const;
  std::int64_t applies_until(std::int64_t n, std::int64_t position) const;

  struct Place {
    std::int64_t iteration = 0;
    std::size_t item = 0;  // in the iteration's list
  };
  Place op_place(std::int64_t number) const;
  Place apply_place(std::int64_t number) const;
  const ResolvedOp& op(std::int64_t number) const;
  const ResolvedApply& apply(std::int64_t number) const;
  std::int64_t apply_moment(std::int64_t number) const;

  // Names for messages: "period[2].ops[5]".
  std::string op_name(std::int64_t number) const;
  std::string apply_name(std::int64_t number) const;

 private:
  void measure(Report& report);
  static std::size_t index_of(std::int64_t n) { return static_cast<std::size_t>(n); }

  std::vector<std::int64_t> first_op_, first_apply_;  // per iteration of [0, horizon]
};

// Rule 1: reports what keeps the known blocks from partitioning the tensors.
void check_partition(const ResolvedPlan& plan, Report& report);

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
