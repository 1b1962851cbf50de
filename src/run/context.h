// What the parts of a run have in common while a plan is in force.
#pragma once

#include <cstdint>
#include <string>

#include "run/cursor.h"
#include "run/flags.h"
#include "run/host.h"
#include "run/op_queue.h"
#include "run/recorder.h"
#include "run/tables.h"

namespace gradweave::run {

// All outlive the parts.
struct Context {
  Host& host;
  OpQueue& queue;
  Tables& tables;
  const Cursor& cursor;
  Flags& flags;
  Recorder& recorder;

  const RunPlan& plan() const { return tables.plan; }
  // The iteration that is being computed.
  const RunIteration& here() const REQUIRES(compute_thread) { return tables.plan[cursor.now()]; }
  Execution& at(std::int64_t iteration, std::int32_t op) const { return tables.ring.at(iteration, op); }
  // Op `ref` of the iteration that is being computed, or of one near it.
  Execution& near(OpRef ref) const REQUIRES(compute_thread) { return at(cursor.now() + ref.delta, ref.op); }
  Part part_of(const Piece& piece) const REQUIRES(compute_thread) {
    return {&near(piece.source), piece.block, piece.offset};
  }
  std::string text_of(std::int32_t tensor) const {
    return "parameter '" + tables.plan.index.tensor_names[static_cast<std::size_t>(tensor)] + "'";
  }
  // Whether what the apply uses holds a gradient of an iteration that is left out.
  bool holds_left_out(const RunApply& apply) const REQUIRES(compute_thread);
};

}  // namespace gradweave::run
