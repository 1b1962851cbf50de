// What gradients show, of the first iterations and again under a plan that delays them: DeFT's Preserver on a running job.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/decision.h"
#include "control/job.h"
#include "gradweave/estimate.h"

namespace gradweave::control {

// Fewer iterations tell nothing; `auto` takes more.
inline constexpr int kLeastCompared = 5, kCompared = 12;

// Returns in how many iterations before the profile gradients are compared; 0 where no plan can come of it that changes
// training. A scheme that was asked for by name gets no more of them than `warm_up`. `compares`: whether this job can.
int iterations_compared(const Request& request, bool compares, int warm_up);

// Of one rank; every rank's is called alike.
class GradientWatch {
 public:
  explicit GradientWatch(Job& job) : job_(job) {}

  // From the first iteration on.
  void begin();
  // Enough was seen before a plan is chosen. Collective.
  void end();
  // Returns what was seen; nothing if that was too little.
  std::optional<GradientsSeen> seen() const;
  // Returns the same for a checkpoint, empty if that is nothing; and takes it from one. Errors: InvalidInput.
  std::vector<double> numbers() const;
  void restore(std::span<const double> numbers);

  // A plan has come into force. If it delays gradients some iterations of every 50 are compared.
  void plan_installed(const Plan& plan, const Workload& workload);
  // Returns why the plan in force should be used no more, "" if nothing speaks against it; said once of a plan. The same on
  // all ranks.
  std::string iteration_ended();

 private:
  void compare(const std::vector<std::string>& late);
  std::vector<GradientSums> sums_of_all();

  Job& job_;
  bool comparing_ = false;
  std::optional<GradientEstimates> estimates_;
  std::deque<SeenIterations> samples_;  // that count together, the oldest first
  // Of the plan in force.
  Plan plan_;
  Workload workload_;
  std::vector<std::string>
      late_;  // tensors whose steps all are late: a gradient's noise is in none of the steps before it
  std::int64_t iterations_ = 0;
};

}  // namespace gradweave::control
