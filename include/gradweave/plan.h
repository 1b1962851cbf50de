// The plan: which collective carries what, on which link, in which order, released by what, and when its
// result is used. Plain data: the validator, the simulator and the engine read it and nothing else. One plan
// holds for all ranks. docs/plan.md explains every word; schema/plan.schema.json is the file form.
//
// Iterations are numbered 0, 1, 2, ...: prologue first, then the period for ever. Every relative iteration
// below is relative to the iteration that lists the op or apply. Intervals are [begin, end).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gradweave/collective.h"
#include "gradweave/compression.h"
#include "gradweave/decimal.h"
#include "gradweave/effects.h"

namespace gradweave {

struct WorkloadIndex;

// The smallest unit that is communicated: elements [begin, end) of a tensor, in memory order.
struct Block {
  std::string tensor;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const Block&, const Block&) = default;
};

// Moments of one iteration of a rank, in the order in which they pass: iteration_start, forward_start(0),
// forward_end(0), ..., backward_start, backward_end(L-1), ..., backward_end(0), iteration_end.
enum class PointKind : std::uint8_t {
  kIterationStart,
  kForwardStart,
  kForwardEnd,
  kBackwardStart,
  kBackwardEnd,
  kIterationEnd
};

struct Point {
  PointKind kind = PointKind::kIterationStart;
  std::int32_t layer = 0;      // for forward_* and backward_end; else 0
  std::int32_t iteration = 0;  // relative, <= 0 for a release; 0 for an apply
  friend bool operator==(const Point&, const Point&) = default;
};

// An op may not start before `point` + `delay_ns`. Data dependencies hold in any case.
struct Release {
  Point point;
  Nanoseconds delay_ns = 0;
  friend bool operator==(const Release&, const Release&) = default;
};

// One collective over one fused message.
struct Op {
  std::string link;
  Collective collective = Collective::kAllReduce;
  Payload payload = Payload::kGradient;
  std::vector<std::int32_t> blocks;  // indices into Plan::blocks; one dtype
  // Sorted, distinct, <= 0. Gradient: whose gradients are merged and carried. Parameter: one iteration, the
  // value after whose local apply is read.
  std::vector<std::int32_t> merges;
  Release release;
  // Of a parameter: what it has gained since its block's anchor goes through it.
  Compression compression;
  friend bool operator==(const Op&, const Op&) = default;
};

enum class Source : std::uint8_t { kReducedGradient, kLocalGradient, kAveragedParameter };
// Averaged parameter: x = avg, or x += avg - what was sent.
enum class Mode : std::uint8_t { kReplace, kCorrect };
// Reduced gradient: as is; or, the local step having been made at once, (mean - own) is added to the next
// step.
enum class Correction : std::uint8_t { kNone, kLocal };

// The use of a result. A reduced gradient is consumed here, its whole generation at once.
struct Apply {
  Point at;                          // iteration_end, forward_start(l) or backward_end(l)
  std::vector<std::int32_t> blocks;  // whole tensors, unless `slices`
  std::vector<std::int32_t> merges;  // the generation; averaged parameter: the iteration whose value was read
  Source source = Source::kReducedGradient;
  Mode mode = Mode::kReplace;
  Correction correction = Correction::kNone;
  bool slices = false;  // parts of tensors, for elementwise optimizers
  friend bool operator==(const Apply&, const Apply&) = default;
};

struct Iteration {
  // In issue order. Ops of one link go in this order; where a backend needs one order of launches over all
  // links (NCCL), it is this list.
  std::vector<Op> ops;
  std::vector<Apply> applies;         // in this order where several pass at one point
  std::vector<std::int32_t> dropped;  // blocks whose gradient goes into the residual this time
  friend bool operator==(const Iteration&, const Iteration&) = default;
};

// Among whom a link's ops are. Two levels: a message is reduced in three steps, each an op over the same blocks and
// merges. A reduce_scatter inside each node leaves every worker a shard, ops between nodes reduce the shards, an
// all_gather inside brings them together.
enum class Level : std::uint8_t {
  kAll,      // all workers
  kInside,   // the workers of one node, in each node
  kBetween,  // the workers of all nodes that hold the same shard
};

struct PlanLink {
  std::string name;
  std::int32_t concurrency = 1;  // 1: one op at a time in issue order; 0: unlimited; else fluid sharing
  Level level = Level::kAll;     // all links of a plan have kAll, or none
  friend bool operator==(const PlanLink&, const PlanLink&) = default;
};

// Error feedback: coefficient(n) = min(cap, initial + floor(n / every) * step) in iteration n.
struct Residual {
  bool enabled = false;
  double initial = 0, step = 0, cap = 1;
  std::int64_t every = 1;
  friend bool operator==(const Residual&, const Residual&) = default;
};

enum class Merge : std::uint8_t { kSum, kMean };

// Nesterov's method on what workers have gained on average since the last common point: with m that mean,
//   v <- momentum v + m;  anchor <- anchor + learning_rate (m + momentum v)
// Without it the anchor moves by m. docs/plan.md, "Anchors".
struct Outer {
  double momentum = 0;       // [0, 1)
  double learning_rate = 1;  // above 0
  friend bool operator==(const Outer&, const Outer&) = default;
};

// A plan in one line: what made it and what it comes to.
struct PlanSummary {
  std::string scheme;  // or "search"
  std::map<std::string, std::string> options;
  double iteration_us = 0;  // predicted, to 6 places
  std::vector<Effect> effects;
  friend bool operator==(const PlanSummary&, const PlanSummary&) = default;
};

// What a planner that searches or chooses has found out beside its plan. For people and for bounds: nothing
// that runs a plan reads it.
struct SearchReport {
  PlanSummary chosen;         // whose plan this is
  double lower_bound_us = 0;  // on the iteration time, to 6 places, rounded down
  std::string proof;          // what proves the bound: "compute", "critical path through layer 5", ...
  bool optimum = false;       // proved: no plan of the family searched takes less than the bound
  std::string reason;         // why this plan was preferred to others; may be empty
  std::optional<PlanSummary> runner_up;  // the best plan of another scheme
  // The plan that would be chosen if corrected averages were allowed too, where they are not; nothing if it
  // would be the same.
  std::optional<PlanSummary> if_corrected;
  friend bool operator==(const SearchReport&, const SearchReport&) = default;
};

struct Plan {
  std::string scheme;                          // who made it, for people; nothing branches on it
  std::map<std::string, std::string> options;  // with which options
  std::string workload_hash, cluster_hash;
  std::int64_t workers = 1;
  std::int64_t workers_per_node = 1;  // above 1 iff links have levels
  std::vector<Block> blocks;          // partition every tensor
  std::vector<PlanLink> links;
  std::vector<Iteration> prologue;
  std::vector<Iteration> period;  // at least one
  Merge merge = Merge::kSum;
  Residual residual;
  std::optional<Outer> outer;                 // of averaged parameters that are corrected
  std::optional<SearchReport> search_report;  // of `optimal` and `auto`
  friend bool operator==(const Plan&, const Plan&) = default;
};

// A planner's result where it has no plan: nothing would ever be updated, or no plan keeps the limits.
struct Infeasible {
  std::string reason;
  friend bool operator==(const Infeasible&, const Infeasible&) = default;
};

using PlanResult = std::variant<Plan, Infeasible>;

// Returns whether its links have levels.
bool has_levels(const Plan& plan);

struct MadeBy {
  std::string scheme;
  std::map<std::string, std::string> options;
};
// Returns whose the plan is: what `auto` or `optimal` say of the plan that they chose, else the plan itself.
MadeBy made_by(const Plan& plan);

// Returns whether the plans are equal but for who made them.
bool do_the_same(const Plan& first, const Plan& second);

// Returns the iteration of the plan that is executed as number `n` >= 0: prologue first, then the period.
const Iteration& iteration_at(const Plan& plan, std::int64_t n);

// Returns how timelines name an op of the plan: its collective, or "average" of parameters, its compressor, its
// first block, with the interval where that is not the whole tensor, and how many more blocks, e.g. "all_reduce
// conv1.weight[0:4096] +3", "average int4 conv1.weight". `index` is that of the plan's workload.
std::string label_of(const Plan& plan, const Op& op, const WorkloadIndex& index);

}  // namespace gradweave
