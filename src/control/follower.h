// What a plan in force really takes, sampled now and then; and a new plan once that has changed.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "control/decision.h"
#include "control/job.h"
#include "control/proposals.h"
#include "control/sampler.h"
#include "gradweave/observe.h"

namespace gradweave::control {

// Of one rank. Every rank's follower is called alike; rank 0's plans.
class Follower {
 public:
  // `on`: a new plan is made once the links or the compute have changed. `grounds`: returns what such a plan rests on besides
  // times.
  Follower(Job& job, bool on, std::function<Grounds()> grounds)
      : job_(job), on_(on), sampler_(job), proposals_(std::move(grounds)) {}

  // A plan has come into force that is predicted to take so long an iteration; `of_this_run`: it is what was proposed for
  // times observed under the plan before.
  void plan_installed(const Plan& plan, const Workload& workload, const Costs& costs, double iteration_ns,
                      bool of_this_run);
  // A plan has come into force of which it is not known what it should take, or which is not to be sampled.
  void nothing_known();
  // From the next plan on: too little is known of the job to put another one in force.
  void keep_plan() { on_ = false; }

  // Returns whether rank 0 has a better plan, which proposal() then is. The same on all ranks.
  bool iteration_ended();
  // Returns rank 0's proposal, on all ranks: the new plan and the one in force. Collective.
  Decision proposal();

  // Whether a plan is being made here.
  bool planning() const { return proposals_.planning(); }
  // Waits for an exchange that is under way. All ranks have begun it. What it brings is not lost.
  void end_exchange();
  // Returns what was measured of the plan in force; nothing if too little was. Collective.
  std::optional<Observer::Report> report();
  // Waits for a plan that is being made. What ranks exchange is left alone.
  void close();

 private:
  void end_sample();
  void forget_samples() { changed_ = announced_ = false; }

  Job& job_;
  bool on_;
  std::optional<Plan> plan_;  // in force, of which it is known what it should take
  // What samples have brought since the last iteration's end: a change; a plan, alike on all ranks.
  bool changed_ = false, announced_ = false;
  EchoTimes usual_;  // what echoes take, for the proposal that comes into force
  Sampler sampler_;
  Proposals proposals_;
};

}  // namespace gradweave::control
