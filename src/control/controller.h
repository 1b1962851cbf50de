// The control of a training job on one rank: profile, probe, decide, switch, follow, tune, object. It decides when what is to
// be done; a Job does it. It includes no torch, no clock and no socket.
//
//   kStarting --layers_known()--> kWarmUp --> kProfile --> [kTuning -->] kSettled --close()--> kClosed
//
// install() and go_on() lead to kSettled from everywhere. Every rank's controller gets the same events after the same
// iterations and exchanges what it decides by, so that all are in the same state with the same plan; what one rank alone
// can't do none does, or each has an error that names it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/decision.h"
#include "control/follower.h"
#include "control/gradient_watch.h"
#include "control/job.h"
#include "control/loop.h"
#include "control/telling.h"
#include "control/tuning.h"
#include "gradweave/observe.h"

namespace gradweave::control {

struct ControllerOptions {
  Request request;
  int warm_up = 3, profile_iterations = 8;  // iterations
  bool compares_gradients = false;          // if a plan that changes training could come of it
  bool follows = false;                     // makes a new plan once links or compute have changed
  int trials = 0;                           // plans that are tried in training
  bool tells = true;
};

// What a rank has seen of its job, and its plans rest on besides times.
struct Seen {
  Loop::Traits traits;
  std::vector<double> gradients;  // GradientWatch::numbers()
};

enum class Phase : std::uint8_t { kStarting, kWarmUp, kProfile, kTuning, kSettled, kClosed };

// Errors of all members: what the Job throws; InvalidInput, alike on all ranks, where no plan can come into force.
class Controller {
 public:
  // `job` and `loop`, which is told what the training loop does, must outlive the controller.
  Controller(Job& job, Loop& loop, ControllerOptions options, Unrunnable unrunnable);
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // ---- events, in the order of the job

  // Before the first iteration.
  void begin();
  // The first forward has shown the layers; times are 0. Puts the starter in force, or the plan that was given. Collective.
  void layers_known(const Workload& workload, const JobLinks& links);
  // An iteration has ended. Collective now and then, alike on all ranks.
  void iteration_ended();
  // The caller wants this plan: now, or once the layers are known. Every rank's does. Collective in the first case.
  void install(const Plan& plan);
  // The job goes on by this plan from iteration `iteration`; `costs`: what it was made for, if that is known; `seen`: seen() of
  // then. Without, the job keeps the plan. Collective.
  void go_on(const Plan& plan, const Workload& workload, std::optional<Costs> costs,
             const std::optional<Seen>& seen, std::int64_t iteration);
  // The job goes on from iteration `iteration` of one of `before` ranks, and makes its own plan.
  void folded(int before, std::int64_t iteration) { telling_.folded(before, iteration); }
  // Waits for what ranks exchange beside the training. All ranks' do it.
  void finish() { follower_.end_exchange(); }
  // Ends all, waiting for nobody but a plan that is being made here and, without an error, an accelerator. `failed`: after an error. Idempotent.
  void close(bool failed);

  // ---- what is known

  Phase phase() const { return phase_; }
  // Whether layers are profiled, or will be.
  bool profiling() const { return phase_ < Phase::kTuning; }
  // The plan in force, what it was made for, what it is predicted to take. Nothing where that is not known.
  const std::optional<Plan>& plan() const { return plan_; }
  const std::optional<Workload>& workload() const { return workload_; }
  const std::optional<Cluster>& cluster() const { return cluster_; }
  const std::optional<SimulationResult>& prediction() const { return prediction_; }
  // What iterations and messages take, on any plan; nothing before the profile.
  const std::optional<Costs>& costs() const { return costs_; }
  Seen seen() const { return {loop_.seen(), watch_ ? watch_->numbers() : std::vector<double>()}; }
  // Whether a plan is being made beside the training, on this rank.
  bool planning() const { return follower_.planning(); }
  // Tuning::report().
  const std::optional<TuningReport>& tuning() const { return tuning_.report(); }
  // Returns what was measured of the plan in force beside what was predicted; nothing if too little is known. Collective,
  // between iterations.
  std::optional<Observer::Report> report() { return follower_.report(); }

 private:
  void decide_and_switch();
  void try_next();
  void follow();
  void obey(const std::string& objection);
  std::unique_ptr<PlanTuner> tuner_of(const Decision& decision) const;
  run::LayerTimes of_slowest(const run::LayerTimes& mine);
  void adopt_traits();
  Grounds grounds() const;
  Decision decided(const Workload& workload, const Costs& costs);
  const Candidate& adopt(Decision& decision, bool of_this_run);
  std::string put_in_force(const Plan& plan);
  void require_in_force(const Plan& plan);
  void judge();
  void plan_installed(bool of_this_run);

  Job& job_;
  Loop& loop_;
  ControllerOptions options_;
  Unrunnable unrunnable_;
  Telling telling_;
  Follower follower_;
  Tuning tuning_;
  std::optional<GradientWatch> watch_;
  Phase phase_ = Phase::kStarting;
  int iterations_ = 0;         // of this phase
  std::optional<Plan> given_;  // until the layers are known
  std::optional<Plan> plan_;
  std::optional<Workload> workload_;
  std::optional<Costs> costs_;
  std::optional<Cluster> cluster_;  // what the plan in force takes of them
  std::optional<SimulationResult> prediction_;
};

}  // namespace gradweave::control
