// How long the last iterations took on this rank, part by part. Of the compute thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gradweave/iteration_statistics.h"
#include "plan/run_plan.h"

namespace gradweave::run {

inline constexpr std::int64_t kMostKept = 16;  // iterations

// What the layers of an iteration take, ns, without waits and updates.
struct LayerTimes {
  std::vector<double> forward_ns, backward_ns;
};

// Times are handed in; those of waits and updates are not compute's, and stop its clock. Makes no memory once a plan is
// in force.
class IterationTimer {
 public:
  // Forgets all. The plan must outlive what follows.
  void install(const RunPlan& plan);
  void restart();

  // A wait, or an update outside of step(), has taken so long.
  void stop_clock(std::int64_t ns) { stopped_ += ns; }
  void waited(std::int64_t ns) { exposed_ += ns; }

  // Of several passes of an iteration, whose gradients are accumulated, the first: all that follows is compute.
  void forward_begins(std::int64_t now) {
    if (forward_begin_ == 0) forward_begin_ = now - stopped_;
  }
  // The forward reaches a layer; of several passes the first counts.
  void layer_started(std::int32_t layer, std::int64_t now) {
    std::int64_t& start = layer_start_[static_cast<std::size_t>(layer)];
    if (start == 0) start = now - stopped_;
  }
  void backward_begins(std::int64_t now) { backward_begin_ = now - stopped_; }
  // The gradients of a layer are complete.
  void layer_ended(std::int32_t layer, std::int64_t now) {
    layer_end_[static_cast<std::size_t>(layer)] = now - stopped_;
  }
  void backward_ended(std::int64_t now);
  void iteration_ended(std::int64_t now);
  // An iteration has passed: the times of its ops, in list order, 0 for those that were not run.
  void ops_ended(std::int64_t iteration, std::span<const std::int64_t> ns);

  // Returns the statistics of the last `iterations`, at most kMostKept, whose ops are known, as this rank of so many has it; without iterations if
  // there are not enough of them, without times of compute if these are not known. Ranks after the same iteration return
  // the same iterations and ops.
  IterationStatistics statistics(std::int64_t iterations, std::size_t rank, std::size_t ranks) const;

  // Returns medians of the last `iterations`, at most kMostKept, scaled so that they add up to the median iteration's; nothing
  // if there are not so many, or unless each of them has started every layer's forward. What lies between two layers counts to
  // the first of them, and passes between the first forward and the last backward to the last layer's forward.
  std::optional<LayerTimes> layer_times(std::int64_t iterations) const;

 private:
  struct Row {
    std::int64_t forward = 0, exposed = 0, iteration = 0;
    bool started = false;                               // every layer's forward
    std::vector<std::int64_t> layer_forward, backward;  // by layer
    std::vector<std::int64_t> ops;                      // by place
  };
  Row& row(std::int64_t number) { return rows_[static_cast<std::size_t>(number) % rows_.size()]; }
  const Row& row(std::int64_t number) const { return rows_[static_cast<std::size_t>(number) % rows_.size()]; }

  void forget_iteration();

  const RunPlan* plan_ = nullptr;
  std::vector<Row> rows_;
  std::vector<std::int64_t> layer_start_, layer_end_;  // 0: not in this iteration, in this backward
  // Points in time are those of compute's clock; 0: not passed in this iteration.
  std::int64_t stopped_ = 0, forward_begin_ = 0, backward_begin_ = 0;
  std::int64_t exposed_ = 0, step_ = 0;
  std::int64_t timed_ = 0;                     // iterations whose compute is known
  std::int64_t ops_from_ = 0, ops_until_ = 0;  // iterations whose ops are known
};

}  // namespace gradweave::run
