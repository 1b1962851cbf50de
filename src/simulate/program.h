// A compiled plan with its costs: flat arrays, no names, every dependency an index.
//
// Iterations from `head` on repeat with the plan's period, in what they contain and in what they depend on;
// the iterations before are written out one by one (prologue, and merges cut off by iteration 0). code_of(n)
// says which code an iteration runs. References are relative to the iteration that holds them, so that one
// code serves every repetition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradweave/cost.h"
#include "gradweave/simulate.h"
#include "gradweave/timeline.h"
#include "gradweave/workload.h"
#include "plan/compiled_plan.h"

namespace gradweave {

// An op may not start before step `step` of iteration (own + iteration) has ended in every class, plus a
// delay.
struct Gate {
  std::int32_t iteration = 0;
  std::int32_t step = 0;
  Nanoseconds delay = 0;
  bool release = false;  // the plan holds the op back; else its data is not there before
};

struct OpPlace {
  std::int32_t iteration = 0;  // relative
  std::int32_t link = 0;
  std::int32_t position = 0;  // among that link's ops of that iteration
  friend auto operator<=>(const OpPlace&, const OpPlace&) = default;
};

struct OpCode {
  Nanoseconds startup = 0;
  Nanoseconds work = 0;
  Nanoseconds earliest = 0;                      // absolute: a delay after the start of iteration 0
  std::uint32_t gate_begin = 0, gate_end = 0;    // into Program::gates
  std::uint32_t after_begin = 0, after_end = 0;  // into Program::refs: the steps before
  std::int32_t plan_op = 0;                      // place in Iteration::ops
  Nanoseconds total() const { return startup + work; }
};

// One step of compute: wait for all of `refs[wait_begin, wait_end)`, then compute for Program::duration().
struct Step {
  std::uint32_t wait_begin = 0, wait_end = 0;
  std::int32_t wait_layer = -1;        // which layer waits; -1 at iteration_end
  SpanKind kind = SpanKind::kForward;  // of the compute; meaningful in fine programs
  std::int32_t layer = -1;
};

struct Program {
  std::int64_t head = 0;
  std::int64_t period = 1;
  std::int64_t settled =
      0;                   // from this iteration on steady states are looked for; head, and some periods more
  std::int32_t reach = 0;  // no reference is further away than this many iterations
  std::size_t class_count = 1;
  std::size_t main_class = 0;             // the slowest: the one that is reported
  Nanoseconds launch = 0;                 // SimulationOptions::launch_ns
  Nanoseconds burst = 0;                  // SimulationOptions::burst_ns
  Nanoseconds handover = 0;               // SimulationOptions::handover_ns; gates have it in their delay
  std::vector<std::int32_t> concurrency;  // per plan link
  std::vector<std::uint32_t> step_begin;  // per code, and the end
  std::vector<std::uint32_t> op_begin;    // per code and link, and the end
  std::vector<Step> steps;
  std::vector<Nanoseconds> durations;  // [class][step]
  std::vector<OpCode> ops;
  std::vector<Gate> gates;
  std::vector<OpPlace> refs;

  std::size_t link_count() const { return concurrency.size(); }
  std::size_t code_count() const { return static_cast<std::size_t>(head + period); }
  std::size_t code_of(std::int64_t n) const {
    return static_cast<std::size_t>(n < head ? n : head + (n - head) % period);
  }
  std::size_t next_code(std::size_t code) const {
    return code + 1 < code_count() ? code + 1 : static_cast<std::size_t>(head);
  }
  Nanoseconds duration(std::size_t cls, std::size_t step) const {
    return durations[cls * steps.size() + step];
  }
  // From the end of a step before until an op on `link` may start. One op at a time: the link goes on from the one to the
  // other without a pause.
  Nanoseconds handover_after(const OpPlace& before, std::size_t link) const {
    return before.link == static_cast<std::int32_t>(link) && concurrency[link] == 1 ? 0 : handover;
  }
  std::span<const OpCode> ops_of(std::size_t code, std::size_t link) const {
    const std::size_t at = code * link_count() + link;
    return {ops.data() + op_begin[at], op_begin[at + 1] - op_begin[at]};
  }
};

// Refuses a plan, which is in form, that is too large to be simulated, before it is unrolled. Errors: InvalidInput.
void require_small(const ResolvedPlan& plan);

// Returns the program of `plan`, which is small enough, and resolved for the cluster of `model`. `fine`: every forward,
// backward and apply is a step of its own, as a timeline needs; else compute between two waits or gates is one
// step, which gives the same times. `classes` share layers and tensors with the workload of `model`. Errors:
// InvalidInput for times beyond exact simulation. O(unrolled ops and applies), log factors aside.
Program program_of(const CompiledPlan& plan, std::span<const Workload> classes, const CostModel& model,
                   const SimulationOptions& options, bool fine);

}  // namespace gradweave
