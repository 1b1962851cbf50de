// Plans tried in training, some iterations each, and the best one kept (gradweave/tune.h).
#pragma once

#include <memory>
#include <optional>

#include "control/job.h"
#include "gradweave/tune.h"

namespace gradweave::control {

// Of one rank. Every rank's tuning is called alike; rank 0's chooses.
class Tuning {
 public:
  explicit Tuning(Job& job) : job_(job) {}

  bool under_way() const { return under_way_; }
  // The first plan of `tuner`, which is null but on rank 0, is in force.
  void begin(std::unique_ptr<PlanTuner> tuner);
  // The plan in force stays, whichever it is.
  void end();

  // Returns whether the plan in force has been measured. The same on all ranks.
  bool iteration_ended();
  // Returns the plan that is to come into force now, the best one of all once under_way() is false. `failed`: the last could
  // not come into force. Collective.
  Plan next(bool failed);

  // Returns what was tried, the same on all ranks; nothing before the first is measured.
  const std::optional<TuningReport>& report() const { return report_; }

 private:
  Job& job_;
  bool under_way_ = false;
  std::unique_ptr<PlanTuner> tuner_;  // rank 0's
  std::optional<TuningReport> report_;
  int iterations_ = 0;  // of this trial
  double seconds_ = 0;  // of one of them
  Time began_{};
};

}  // namespace gradweave::control
