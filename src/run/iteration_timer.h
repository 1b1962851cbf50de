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
// iterations are profiled. Waits for no device unless it is told to.
class IterationTimer {
 public:
  explicit IterationTimer(std::unique_ptr<Stopwatch> stopwatch) : layers_(std::move(stopwatch)) {}

  // Forgets all. The plan must outlive what follows.
  void install(const RunPlan& plan);
  // The plan begins anew.
  void restart();

  // Takes the points of an iteration, and profiles.
  LayerTimer& layers() { return layers_; }
  const LayerTimer& layers() const { return layers_; }
  // Op number `place` of an iteration ran on a device in this stretch.
  void op_ran(std::int64_t iteration, std::int32_t place, Stretch stretch);
  // An iteration has passed: what each of its ops took, in list order, by the host's clock, which doesn't count for those of
  // op_ran(); 0 for those that were not run.
  void ops_ended(std::int64_t iteration, std::span<const std::int64_t> ns);

  // So many iterations before the last whose ops are known are what statistics() ends with unless it waits: the host may be ahead of
  // them.
  std::int64_t behind() const { return layers_.stopwatch().of_device() ? kMostAhead : 0; }
  // Returns the statistics of `iterations` iterations, at most kMostKept, as this rank of so many has it; without iterations if
  // there are not enough of them, without times of compute if these are not known. Ranks after the same iteration return
  // the same iterations and ops. `wait`: for the device, and up to the last iteration; else it is not `whole` if the device has not
  // passed them.
  IterationStatistics statistics(std::int64_t iterations, std::size_t rank, std::size_t ranks, bool wait);
  // Returns what each of the last iterations took, ns: of the plan since it began, at most `most` <= kMostKept. Waits for the device.
  std::vector<double> iteration_ns(std::int64_t most);
  // Returns the same of iterations since install() whose times have become known since the last call, at most kMostKept. `wait`: for
  // the device.
  std::vector<double> take_iteration_ns(bool wait);

 private:
  struct Op {
    std::int64_t ns = 0;
    Stretch stretch;
  };
  struct Row {
    std::int64_t iteration = -1;
    std::vector<Op> ops;  // by place
  };
  Row& row(std::int64_t iteration);
  void forget(Row& row);
  void forget_ops();
  std::vector<double> iterations_from(std::int64_t first) const;

  const RunPlan* plan_ = nullptr;
  LayerTimer layers_;
  std::vector<Row> rows_;
  std::int64_t restarted_ = 0;                 // after so many iterations whose compute was kept
  std::int64_t taken_ = 0;                     // so many of them
  std::int64_t ops_from_ = 0, ops_until_ = 0;  // iterations whose ops are known
};

}  // namespace gradweave::run
