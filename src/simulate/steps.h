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
#include "plan/resolved.h"
#include "simulate/moments.h"
#include "simulate/op_places.h"
#include "simulate/program.h"

namespace gradweave {

// First every cut(), then write() for code 0, 1, ... to the last, then finish().
class StepWriter {
 public:
  // `cost`: of the plan's workload. `fine`: see compile(). Everything must outlive the object; `program` is
  // written.
  StepWriter(const ResolvedPlan& plan, std::span<const Workload> classes, const CostModel& model,
             const SimulationOptions& options, bool fine, OpPlaces& places, Program& program);

  // A step of `code` must end at `moment`.
  void cut(std::size_t code, Moment moment) { cuts_[code].push_back({moment}); }

  // Appends the steps of a code.
  void write(std::size_t code);

  // Completes Program::step_begin and Program::durations.
  void finish();

  // Returns which step of `code` ends at a moment that was cut.
  std::int32_t step_at(std::size_t code, Moment moment) const;

 private:
  struct Cut {
    Moment moment = 0;
    std::int32_t step = 0;  // that ends there
  };

  void apply_at(const Point& at, std::int32_t layer);
  const std::vector<OpPlace>& awaited_by(const ResolvedApply& apply);
  void share_optimizer();
  void open_step();
  void wait(const std::vector<OpPlace>& refs, std::int32_t layer);
  template <typename Duration>
  void compute(SpanKind kind, std::int32_t layer, const Duration& duration);
  void mark(Moment moment);

  const ResolvedPlan& plan_;
  std::span<const Workload> classes_;
  const CostModel& model_;
  const SimulationOptions& options_;
  const bool fine_;
  const Moments moments_;
  OpPlaces& places_;
  Program& program_;
  std::vector<std::vector<Cut>> cuts_;       // per code
  std::vector<Nanoseconds> step_durations_;  // [step][class]

  // The code being written:
  std::int64_t n_ = 0;
  const ResolvedIteration* iteration_ = nullptr;
  std::size_t next_apply_ = 0;                // by rank
  std::vector<Nanoseconds> optimizer_share_;  // per apply
  bool open_ = false;                         // the last step goes on
  bool computed_ = false;                     // and has computed something
};

}  // namespace gradweave
