// Schedules without staleness: when each op of an iteration runs, how long the iteration takes, which link
// each op should use, and the plan that says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "gradweave/cost.h"
#include "gradweave/plan.h"
#include "schemes/common.h"

namespace gradweave {

// Who waits for an op: a layer's next forward, or one of these.
inline constexpr std::size_t kIterationEnd =
    std::numeric_limits<std::size_t>::max() - 1;  // the next iteration
inline constexpr std::size_t kNobody =
    std::numeric_limits<std::size_t>::max();  // only the op that comes `after` it
inline constexpr std::size_t kNoOp = std::numeric_limits<std::size_t>::max();

// One op of a schedule; a schedule lists its ops in issue order.
struct ScheduledOp {
  std::vector<Slice> slices;  // one dtype
  Collective collective = Collective::kAllReduce;
  std::size_t link = 0;
  std::size_t ready_layer = 0;  // may start at the end of this layer's backward,
  Nanoseconds delay = 0;        // and this much later
  std::size_t after = kNoOp;    // and after this op of the list (an earlier one)
  std::size_t needed_by = kIterationEnd;
};

// Times from the start of backward.
struct ScheduleTimes {
  std::vector<Nanoseconds> start, end;  // per op
  Nanoseconds iteration = 0;            // of the steady state
};

// Evaluates assignments of links for one list of ops, exactly as the simulator does. Every op of an iteration
// is over before the next backward starts, since some layer's forward waits for it: so one pass from an idle
// network at the start of backward gives the steady state. Links of concurrency 1 serve in issue order:
//   start(i) = max(end of the op before it on its link, backward_end(ready_layer) + delay, end(after))
//   forward_start(l) = max(forward_end(l-1), end(i) for all i that l needs); iteration = forward_end(L-1), so
//   iteration = max(compute, max over i of end(i) + rest(i)), rest(i): forward from the layer that needs i on
// Shared links are simulated event by event, as by the simulator.
class Schedule {
 public:
  Schedule(const CostModel& model, std::span<const ScheduledOp> ops);

  // Returns the steady state with op i on links[i]. O(ops), with shared links O(ops * (log ops + links)).
  ScheduleTimes times(std::span<const std::size_t> links) const;
  Nanoseconds iteration(std::span<const std::size_t> links) const;

  const OpCost& cost(std::size_t op, std::size_t link) const { return costs_[op * link_count_ + link]; }
  Nanoseconds ready(std::size_t op) const { return ops_[op].ready; }
  // Returns the op that the iteration waits for last, or kNoOp if compute alone decides.
  std::size_t critical_op(const ScheduleTimes& times) const;
  std::size_t after(std::size_t op) const { return ops_[op].after; }
  std::size_t size() const { return ops_.size(); }
  std::size_t link_count() const { return link_count_; }

 private:
  friend class ScheduleTrials;
  struct Item {
    Nanoseconds ready;
    std::size_t after;
    Nanoseconds rest;  // of the iteration, once the op has ended
  };
  // Both return how many ops they got to: they give up once the iteration can't be shorter than `limit`. In
  // order: ops from `first` on, those before having ended at `ends_before` and left the links `free`.
  std::size_t run_in_order(std::span<const std::size_t> links, std::size_t first,
                           std::span<const Nanoseconds> ends_before, Nanoseconds limit,
                           std::span<Nanoseconds> free, ScheduleTimes& times) const;
  std::size_t run_shared(std::span<const std::size_t> links, Nanoseconds limit, ScheduleTimes& times) const;

  std::vector<Item> ops_;
  std::vector<OpCost> costs_;
  std::vector<std::int32_t> concurrency_;
  std::size_t link_count_;
  Nanoseconds compute_ = 0;  // of an iteration
  bool shared_ = false;
};

// Tries other links for some ops of a schedule, without evaluating what comes before the first that changes
// or after it is clear that nothing is gained.
class ScheduleTrials {
 public:
  // `schedule` must outlive this.
  ScheduleTrials(const Schedule& schedule, std::vector<std::size_t> links);

  // The assignment under trial: change it, ask shorter(), then keep() it or change it back.
  std::vector<std::size_t>& links() { return links_; }
  // Returns whether the iteration is shorter than that of the assignment kept last. They must agree on the
  // ops before `first`. O(ops from `first` on), with shared links as Schedule::times().
  bool shorter(std::size_t first);
  void keep();
  const ScheduleTimes& best() const { return best_; }  // of the assignment kept last
  // The work done so far, in ops placed on links that serve in order.
  std::size_t steps() const { return steps_; }

 private:
  const Schedule& schedule_;
  std::vector<std::size_t> links_;
  ScheduleTimes best_, trial_;
  std::vector<Nanoseconds> free_before_;    // [op][link]: when the link is free of the ops before
  std::vector<Nanoseconds> latest_before_;  // [op]: max of end + rest over the ops before
  std::vector<Nanoseconds> free_;
  std::size_t steps_ = 0;
};

// Chooses the link of each op: for the first two links, the first three, ... the best of "each op where it
// ends first", "all on link k" and the choice for one link fewer, improved by local search (move an op of the
// critical chain to another link, or exchange it with an op there) as long as the iteration gets shorter and
// the budget lasts. An op with `after` stays with that op's link. Deterministic; the budget is counted in ops
// that trials place, so that it takes 3 ms a link at most.
void assign_links(const CostModel& model, std::vector<ScheduledOp>& ops);

// Each op where it ends first: the start of that search. O(ops * links).
void assign_links_greedily(const CostModel& model, std::vector<ScheduledOp>& ops);

// The same search, starting from the links that `ops` name.
void improve_links(const CostModel& model, std::vector<ScheduledOp>& ops);

// Returns the steady-state iteration time of `ops` on the links that they name.
Nanoseconds iteration_time(const CostModel& model, std::span<const ScheduledOp> ops);

// Returns the messages as ops that start as soon as their last gradient exists, needed at iteration_end; on
// link 0.
std::vector<ScheduledOp> scheduled_when_ready(const CostModel& model, std::span<const Message> messages);

// Returns the plan of a schedule whose ops are all-reduces needed at iteration_end.
Plan synchronous_plan(const CostModel& model, std::span<const ScheduledOp> ops);

// Returns the plan of a schedule with forward overlap: period 1; each layer's gradients are applied at its
// next forward_start. An op that starts after backward is listed in the next iteration (merges {-1}), before
// that iteration's own ops, so that every link keeps the order of `ops`; an all_gather always is.
Plan overlapped_plan(const CostModel& model, std::span<const ScheduledOp> ops);

}  // namespace gradweave
