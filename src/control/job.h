// What a controller has done for it: the other ranks, the engine, the measurements and the people who read what it tells.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/costs.h"
#include "gradweave/estimate.h"
#include "gradweave/observe.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"
#include "run/layer_timer.h"

namespace gradweave::control {

using Time = std::chrono::nanoseconds;  // of a steady clock; this folder reads none

// Iterations after a change of plan that do not count: buffers are made then, graphs compiled.
inline constexpr int kSettling = 3;

// One rank's commands. The controller gives them on the training thread, between iterations, and every rank's controller
// gives the collective ones in the same order. Errors of all: RuntimeFailure once a peer is lost; what else one throws ends
// the job on this rank, whose face tells the others.
class Job {
 public:
  virtual ~Job() = default;

  // Whether this rank decides on plans and tells: one of the ranks that have one plan does, whose text gather() has first.
  virtual bool decides() const = 0;
  // How many ranks train alike.
  virtual int size() const = 0;
  virtual Time now() = 0;

  // ---- the other ranks that have one plan with this one; `what` says in errors what failed. Collective.

  // Returns what each rank has given, by rank.
  virtual std::vector<std::string> gather(const std::string& what, const std::string& text) = 0;
  // Return, element by element, the largest of all ranks' numbers, or their mean. Alike on all ranks.
  virtual std::vector<double> largest(const std::string& what, const std::vector<double>& values) = 0;
  virtual std::vector<double> means(const std::string& what, const std::vector<double>& values) = 0;
  // An exchange that goes on beside the training.
  class Exchange {
   public:
    virtual ~Exchange() = default;
    // Returns the smallest of all ranks' numbers, once they have come. Once.
    virtual std::vector<double> wait() = 0;
  };
  virtual std::unique_ptr<Exchange> begin_smallest(const std::string& what,
                                                   const std::vector<double>& values) = 0;

  // ---- plans

  // Applies what the plan in force has on its way, after agreeing that all ranks are here. Collective.
  virtual void drain(const std::string& what) = 0;
  // Puts the plan in force. Returns why this rank could not, "" if it could: what one rank finds before the plan is in
  // force, all ranks return. Collective.
  virtual std::string install(const Plan& plan, const Workload& workload) = 0;
  // Whether another plan would have the model compiled again. Alike on all ranks.
  virtual bool compiled() { return false; }

  // ---- measurements

  // Profiles so many iterations from now on. Returns, after them, what they have taken on this rank.
  virtual void begin_profile(int iterations) = 0;
  virtual run::LayerTimes end_profile() = 0;
  // No more is profiled: a plan has come from elsewhere.
  virtual void drop_profile() = 0;
  // Looks at what the optimizers and the loop do, and tells the controller's loop.
  virtual void look_at_optimizers() = 0;
  // Returns what messages take over the links, and how fast compressors are that the job may use. Collective.
  virtual Costs measure(const Workload& workload) = 0;
  // Returns what this rank's last iterations took; of an accelerator those before the last behind(), unless it waits for it
  // (IterationTimer::statistics()).
  virtual IterationStatistics statistics(std::int64_t iterations, bool wait) = 0;
  virtual std::int64_t behind() { return 0; }
  // Returns what each of the plan's last iterations took, at most so many, ns. Waits for an accelerator.
  virtual std::vector<double> iteration_ns(std::int64_t most) = 0;
  // Returns the same of those that have become known since the last call; `wait`: for an accelerator, of all.
  virtual std::vector<double> take_iteration_ns(bool wait) = 0;
  // Echoes go round on these links from now on, and no others; start_echoes() sends the next on each.
  virtual void echo_on(const std::vector<std::string>& links) = 0;
  virtual void start_echoes() = 0;
  // Returns what the last echo took, by link (Echo::taken_ns()).
  virtual std::vector<double> echo_ns() = 0;

  // ---- gradients, where a plan that changes training may come of it

  // Compares the gradients of the coming iterations: of all parameters beside their means; or, if `late` isn't empty, of
  // these tensors with those of the iteration before.
  virtual void compare_gradients(const std::vector<std::string>& late) = 0;
  // Ends that. Returns this rank's sums of each iteration.
  virtual std::vector<GradientSums> compared_gradients() = 0;
  // Returns what the optimizer does; nothing if it isn't known. The largest learning rate.
  virtual std::optional<StepRule> step_rule() = 0;
  virtual double learning_rate() = 0;

  // ---- people

  // A line for who runs the job. Only where decides() is.
  virtual void tell(const std::string& line) = 0;
};

}  // namespace gradweave::control
