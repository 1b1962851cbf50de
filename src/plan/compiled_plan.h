// A plan unrolled, its relations resolved: what the validator, the simulator and the engine start from.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/report.h"
#include "plan/resolved.h"
#include "plan/uses.h"

namespace gradweave {

// An op of some iteration: number `op` in the list of the iteration `delta` away from the one that refers to it.
struct OpRef {
  std::int32_t delta = 0;
  std::int32_t op = -1;  // -1: none
  friend auto operator<=>(const OpRef&, const OpRef&) = default;
};

// Which op brings a block to an apply.
struct Delivery {
  std::int32_t block = 0;
  OpRef op;
  std::int32_t part = 0;  // the block's place in the op's list
};

// The local step after which an op reads a block: number `apply` in the list of the iteration `delta` away.
struct Reading {
  std::int32_t part = 0;  // the block's place in the op's list
  std::int32_t delta = 0;
  std::int32_t apply = 0;
};

// Every relation between ops and applies repeats with the period from iteration prologue + reach on, where
// `merges` no longer meets the start. So gradients of iterations [0, checked) are all that there are, checked =
// prologue + reach + period, and iterations [0, horizon) are unrolled, horizon = checked + reach, in which these
// gradients are used. The last period repeats for ever.
//
// The ops and the applies of the unrolled iterations are numbered: ops as they are listed, applies as they
// pass. A moment numbers the positions of all iterations.
//
// Of a plan that breaks rules the relations are those that are there: none, or several.
class CompiledPlan : public ResolvedPlan {
 public:
  // Reports a plan that is too large. The plan and the index must outlive the object. O(blocks and merges of the
  // unrolled plan), log factors aside.
  CompiledPlan(ResolvedPlan resolved, Report& report);
  // Errors: InvalidInput for a plan that is too large.
  explicit CompiledPlan(ResolvedPlan resolved);
  CompiledPlan(const CompiledPlan&) = delete;
  CompiledPlan& operator=(const CompiledPlan&) = delete;

  std::int64_t checked = 0, horizon = 0;
  // There is a period, and the unrolled plan is of a size that can be gone through. If not, there is nothing below.
  bool checkable = false;

  const Uses& uses() const { return *uses_; }

  // ---- relations, for any iteration n >= 0; empty for an op or apply that does not exist there

  // Returns what brings the blocks of apply k, in its order; of gradients that are only scattered, that op.
  std::span<const Delivery> deliveries(std::int64_t n, std::size_t k) const {
    return slice(deliveries_, of_apply_[index_of(first_apply_[row(n)]) + k]);
  }
  // Returns the op whose result op k goes on with: an all_gather's reduce_scatter, of two levels the step before.
  std::span<const OpRef> steps_before(std::int64_t n, std::size_t k) const {
    return slice(steps_, of_op_[index_of(first_op_[row(n)]) + k].steps);
  }
  // Returns the local steps that op k, the first that carries those parameters, comes after.
  std::span<const Reading> readings(std::int64_t n, std::size_t k) const {
    return slice(readings_, of_op_[index_of(first_op_[row(n)]) + k].readings);
  }

  // ---- numbers, for n < horizon

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
  std::string op_name(const Place& op) const;
  std::string op_name(std::int64_t number) const { return op_name(op_place(number)); }
  std::string apply_name(const Place& apply) const;
  std::string apply_name(std::int64_t number) const { return apply_name(apply_place(number)); }

 private:
  using Range = std::pair<std::uint32_t, std::uint32_t>;
  struct OpRanges {
    Range steps, readings;
  };

  void measure(Report& report);
  void relate();
  void relate(std::int64_t n, const ResolvedOp& op);
  std::optional<Role> step_before(std::int64_t n, const ResolvedOp& op) const;
  void relate(std::int64_t n, const ResolvedApply& apply);
  bool deliver(Role role, std::int64_t n, const ResolvedApply& apply);
  static std::size_t index_of(std::int64_t n) { return static_cast<std::size_t>(n); }
  // The iteration before `checked` with the relations of iteration n.
  std::size_t row(std::int64_t n) const {
    return index_of(n < checked ? n : checked - period + (n - checked) % period);
  }
  template <typename Item>
  static std::span<const Item> slice(const std::vector<Item>& items, Range range) {
    return std::span(items).subspan(range.first, range.second - range.first);
  }

  std::vector<std::int64_t> first_op_, first_apply_;  // per iteration of [0, horizon]
  std::optional<Uses> uses_;
  std::vector<Delivery> deliveries_;
  std::vector<OpRef> steps_;
  std::vector<Reading> readings_;
  std::vector<OpRanges> of_op_;  // per op before `checked`
  std::vector<Range> of_apply_;  // per apply before `checked`, in the order of the lists: its deliveries
};

}  // namespace gradweave
