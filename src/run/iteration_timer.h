// How long the last iterations of a plan took on this rank, part by part. Of the compute thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gradweave/iteration_statistics.h"
#include "plan/run_plan.h"
#include "run/layer_timer.h"

namespace gradweave::run {

// Waits and updates outside of step() are not compute's, and stop its clock. Makes no memory once a plan is in force, unless
// iterations are profiled.
class IterationTimer {
 public:
  explicit IterationTimer(std::unique_ptr<Stopwatch> stopwatch) : layers_(std::move(stopwatch)) {}

  // Forgets all. The plan must outlive what follows.
  void install(const RunPlan& plan);
  // The plan begins anew.
  void restart();

  // Takes the points of an iteration but for its end, and profiles.
  LayerTimer& layers() { return layers_; }
  void waited(std::int64_t ns) { exposed_ += ns; }
  void iteration_ended();
  // An iteration has passed: the times of its ops, in list order, 0 for those that were not run.
  void ops_ended(std::int64_t iteration, std::span<const std::int64_t> ns);

  // Returns the statistics of the last `iterations`, at most kMostKept, whose ops are known, as this rank of so many has it; without iterations if
  // there are not enough of them, without times of compute if these are not known. Ranks after the same iteration return
  // the same iterations and ops.
  IterationStatistics statistics(std::int64_t iterations, std::size_t rank, std::size_t ranks) const;

 private:
  struct Row {
    std::int64_t exposed = 0;
    std::vector<std::int64_t> ops;  // by place
  };
  Row& row(std::int64_t number) { return rows_[static_cast<std::size_t>(number) % rows_.size()]; }
  const Row& row(std::int64_t number) const { return rows_[static_cast<std::size_t>(number) % rows_.size()]; }

  const RunPlan* plan_ = nullptr;
  LayerTimer layers_;
  std::vector<Row> rows_;
  std::int64_t exposed_ = 0;                   // in this iteration
  std::int64_t restarted_ = 0;                 // after so many iterations whose compute is known
  std::int64_t ops_from_ = 0, ops_until_ = 0;  // iterations whose ops are known
};

}  // namespace gradweave::run
