// The compute side of a program: an iteration's steps, cut wherever compute waits for a result, and wherever
// some op waits for compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradweave/cost.h"
#include "gradweave/plan.h"
#include "gradweave/simulate.h"
#include "plan/compiled_plan.h"
#include "simulate/op_places.h"
#include "simulate/point_order.h"
#include "simulate/program.h"

namespace gradweave {

// First every cut(), then write() for code 0, 1, ... to the last, then finish().
class StepWriter {
 public:
  // `cost`: of the plan's workload. `fine`: see program_of(). Everything must outlive the object; `program` is
  // written.
  StepWriter(const CompiledPlan& plan, std::span<const Workload> classes, const CostModel& model,
             const SimulationOptions& options, bool fine, OpPlaces& places, Program& program);

  // A step of `code` must end at `rank`.
  void cut(std::size_t code, PointRank rank) { cuts_[code].push_back({rank}); }

  // Appends the steps of a code.
  void write(std::size_t code);

  // Completes Program::step_begin and Program::durations.
  void finish();

  // Returns which step of `code` ends at a rank that was cut.
  std::int32_t step_at(std::size_t code, PointRank rank) const;

 private:
  struct Cut {
    PointRank rank = 0;
    std::int32_t step = 0;  // that ends there
  };

  void apply_at(const Point& at, std::int32_t layer);
  void time_optimizer();
  void open_step();
  void wait(const std::vector<OpPlace>& refs, std::int32_t layer);
  template <typename Duration>
  void compute(SpanKind kind, std::int32_t layer, const Duration& duration);
  void mark(PointRank rank);

  const CompiledPlan& plan_;
  std::span<const Workload> classes_;
  const CostModel& model_;
  const SimulationOptions& options_;
  const bool fine_;
  const PointOrder order_;
  OpPlaces& places_;
  Program& program_;
  std::vector<std::vector<Cut>> cuts_;       // per code
  std::vector<Nanoseconds> step_durations_;  // [step][class]

  // The code being written:
  std::int64_t n_ = 0;
  const ResolvedIteration* iteration_ = nullptr;
  std::size_t next_apply_ = 0;                // by rank
  std::vector<Nanoseconds> optimizer_times_;  // per apply
  bool open_ = false;                         // the last step goes on
  bool computed_ = false;                     // and has computed something
};

}  // namespace gradweave
