// A compiled plan as a run goes through it: what is due at each point of each iteration, and where each block lies in
// each op's message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradweave/plan.h"
#include "gradweave/workload.h"
#include "plan/compiled_plan.h"

namespace gradweave {

// Ops are numbered among those that exist in their iteration.

// Where a block lies in the flat buffer of an op.
struct Piece {
  std::int32_t block = 0;
  OpRef source;
  std::int64_t offset = 0;  // elements
};

struct RunOp {
  std::int32_t link = 0;
  Level level = Level::kAll;  // of its link
  Collective collective = Collective::kAllReduce;
  Payload payload = Payload::kGradient;
  DType dtype = DType::kFloat32;
  std::vector<std::int32_t> blocks;
  std::vector<std::int64_t> offsets;  // of each block in the flat buffer, elements
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
  std::int64_t half_startups = 2;    // in halves of an all-reduce's
  std::vector<std::int32_t> merges;  // those of iterations that exist
  Release release;
  Compression compression;  // its parameters given; no name: none
  OpRef
      before;  // the step whose message it takes over: an all_gather's reduce_scatter, of two levels the step before
  bool goes_on = false;  // another step takes its message over
  bool in_place =
      false;  // works on the gradient itself: one whole tensor, this iteration's, applied at its end
  // A copy of what this rank sent is needed when the result is applied. Of gradients all steps have it.
  bool keep_own = false;
  bool anchored = false;  // parameters: what was gained since the blocks' anchors is sent, not the value
  // anchored: its link works on copies of the parameters, in float32 and in the processor's memory. The caller of
  // run_plan_of() says so.
  bool staged = false;
  std::int32_t last_apply = 0;  // relative iteration of the last apply that uses it
  std::string label;            // "all_reduce conv1.weight[0:4096] +3"
};

// What one step of the optimizer is of. Both lists are sorted.
struct Stepped {
  std::vector<std::int32_t> tensors;  // whole ones
  std::vector<std::int32_t> blocks;   // of tensors that the plan steps in slices
  bool empty() const { return tensors.empty() && blocks.empty(); }
  friend auto operator<=>(const Stepped&, const Stepped&) = default;
};

// Adds what `more` has.
void add(const Stepped& more, Stepped& stepped);

// One step of an iteration_end, in plan order: of the optimizer, or else one parameter average.
struct EndAction {
  bool optimizer = false;
  Stepped stepped;                    // optimizer
  std::vector<std::int32_t> applies;  // indices into RunIteration::applies
};

// A block whose value an op sends.
struct SentBlock {
  OpRef op;
  std::int32_t part = 0;  // the block's place in the op's list
  friend auto operator<=>(const SentBlock&, const SentBlock&) = default;
};

struct RunApply {
  Point at;
  Source source = Source::kReducedGradient;
  Mode mode = Mode::kReplace;
  Correction correction = Correction::kNone;
  std::vector<std::int32_t> blocks;
  Stepped stepped;                        // by its blocks
  std::vector<std::int32_t> tensors;      // distinct, in list order
  std::vector<Piece> pieces;              // sorted by place in `tensors`, then by begin
  std::vector<std::int32_t> first_piece;  // per tensor; size tensors + 1
  std::vector<std::int32_t> merges;       // those that exist
  std::vector<SentBlock> reads;           // of a local gradient: what is read once it is stepped, sorted
};

struct RunIteration {
  std::vector<RunOp> ops;
  std::vector<RunApply> applies;
  std::vector<EndAction> end_actions;
  std::vector<std::vector<std::int32_t>> at_forward;   // per layer: indices into applies
  std::vector<std::vector<std::int32_t>> at_backward;  // per layer
  // Per layer: the layers before it at whose forward_start something of it is applied, sorted.
  std::vector<std::vector<std::int32_t>> updated_before;
  // Per layer: the layers at whose backward_end something is applied of a tensor that its own backward_end applies after them.
  std::vector<std::vector<std::int32_t>> applied_before;
  std::vector<std::int32_t> gradients_at_end;  // applies of reduced gradients at iteration_end
  std::vector<OpRef> gradient;                 // per block: the op that carries this iteration's gradient
  std::vector<std::int64_t> offset;            // per block: its place in that op's buffer
  std::vector<std::uint8_t> dropped;           // per block
  std::vector<std::uint8_t>
      gradient_outside_end;  // per block: this gradient's apply is not at an iteration_end
  bool synchronous = true;   // everything reduced is of this iteration and applied at its end
};

// Iteration n of a run is iterations[at(n)].
struct RunPlan {
  std::vector<RunIteration> iterations;
  std::int64_t cycle = 1;       // the last `cycle` iterations repeat for ever
  std::int32_t look_ahead = 0;  // an op lies at most so many iterations after a gradient that it carries
  std::int32_t look_back = 0;   // an apply lies at most so many iterations after the op that it uses
  std::size_t layers = 0;
  WorkloadIndex index;
  std::vector<Block> blocks;
  std::vector<std::int32_t> block_tensor;
  std::vector<std::uint8_t> block_whole;                    // the block is its whole tensor
  std::vector<std::vector<std::int32_t>> blocks_of_tensor;  // by begin
  std::vector<std::string> links;
  std::vector<std::int32_t> concurrency;  // per link
  std::vector<Level> levels;              // per link
  std::int64_t workers_per_node = 1;      // of two levels
  Merge merge = Merge::kSum;
  Residual residual;
  std::optional<Outer> outer;
  bool local_steps = false;                   // parameters of ranks differ between averages
  std::vector<std::uint8_t> stepped_locally;  // per tensor
  // Per tensor: some apply steps a part of it. Then each of its blocks is stepped as a tensor of its own.
  std::vector<std::uint8_t> sliced;
  std::string hash;  // of the plan's canonical JSON; the caller of run_plan_of() fills it in

  std::size_t at(std::int64_t n) const {
    const auto size = static_cast<std::int64_t>(iterations.size());
    return static_cast<std::size_t>(n < size ? n : size - cycle + (n - size) % cycle);
  }
  const RunIteration& operator[](std::int64_t n) const { return iterations[at(n)]; }
};

// Returns whether some release has a delay.
bool has_delays(const RunPlan& plan);

// Returns the run plan of a plan. The caller owes one that validate() accepts. Errors: InvalidInput for a plan out of
// form, or too large. O(blocks and merges of the unrolled plan), log factors aside.
RunPlan run_plan_of(const Plan& plan, const Workload& workload);

}  // namespace gradweave
