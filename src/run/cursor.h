// Which iteration a rank computes, and which there are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "run/archive.h"
#include "run/compute_thread.h"

namespace gradweave::run {

// Iterations are counted from where the plan came into force. The run's, for people and peers, go on over plans.
class Cursor {
 public:
  // The one that is being computed, of the plan; of the run.
  std::int64_t now() const REQUIRES(compute_thread) { return now_; }
  std::int64_t of_run() const REQUIRES(compute_thread) { return base_ + now_; }
  std::int64_t of_run(std::int64_t of_plan) const REQUIRES(compute_thread) { return base_ + of_plan; }
  std::string text() const REQUIRES(compute_thread) { return "iteration " + std::to_string(of_run()); }

  void advance() REQUIRES(compute_thread) { ++now_; }

  // While a plan is drained, the iterations from the one on that was coming do not exist.
  void begin_drain() REQUIRES(compute_thread) { end_ = now_; }
  bool draining() const REQUIRES(compute_thread) { return end_.has_value(); }
  bool exists(std::int64_t of_plan) const REQUIRES(compute_thread) { return !end_ || of_plan < *end_; }
  // Whether updates that were on their way when the drain began are what this iteration applies first.
  bool begins_drain() const REQUIRES(compute_thread) { return end_ == now_; }

  // A plan begins at its iteration 0: another one, or the same one once it is drained.
  void restart() REQUIRES(compute_thread) {
    base_ += end_.value_or(now_);
    now_ = 0;
    end_.reset();
  }
  // Before the first plan: so many iterations of the job were run elsewhere.
  void begin_at(std::int64_t of_run) REQUIRES(compute_thread) { base_ = of_run; }

  void archive(Archive& archive) REQUIRES(compute_thread) {
    archive(now_);
    archive(base_);
  }

 private:
  std::int64_t now_ GUARDED_BY(compute_thread) = 0;
  std::int64_t base_ GUARDED_BY(compute_thread) = 0;            // iterations before the plan was put in force
  std::optional<std::int64_t> end_ GUARDED_BY(compute_thread);  // of a drain: the first that does not exist
};

}  // namespace gradweave::run
