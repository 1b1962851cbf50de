// One execution of an op, and the ring that holds those that are alive.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/run_plan.h"

namespace gradweave::run {

// An op of one iteration. Its message is the host's, which keeps it under `slot`. What several threads may
// see change (data still to come, done) is in the op queue; the rest changes only while no link knows of it.
struct Execution {
  const RunOp* op = nullptr;          // null: this place of the ring is empty
  std::int64_t iteration = 0;         // of the plan, the one that lists it
  std::int64_t run_iteration = 0;     // of the run, for people
  std::int32_t place = 0;             // in its iteration's list
  std::size_t slot = 0;               // its place in the ring
  const Execution* before = nullptr;  // the step whose message it takes over
  std::vector<std::uint8_t> written;  // per block: its part of the message was begun. Of the compute thread
};

// The executions of `depth` consecutive iterations.
class Ring {
 public:
  Ring() = default;
  explicit Ring(const RunPlan& plan);

  std::size_t capacity() const { return rows_.size() * widest_; }
  std::size_t depth() const { return rows_.size(); }

  // Places of an iteration's row; those without an op are empty.
  std::span<Execution> row(std::int64_t iteration) {
    return rows_[static_cast<std::size_t>(iteration) % rows_.size()];
  }
  Execution& at(std::int64_t iteration, std::int32_t op) {
    return row(iteration)[static_cast<std::size_t>(op)];
  }

  // Makes the row ready for `iteration`; what was there before must be done.
  void open(const RunPlan& plan, std::int64_t iteration, std::int64_t run_iteration);
  void clear();

 private:
  std::vector<std::vector<Execution>> rows_;
  std::size_t widest_ = 0;
};

}  // namespace gradweave::run
