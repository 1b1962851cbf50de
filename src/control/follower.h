// What a plan in force really takes, sampled now and then; and a new plan once that has changed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/decision.h"
#include "control/job.h"
#include "control/planner.h"
#include "gradweave/observe.h"

namespace gradweave::control {

// Of one rank. Every rank's follower is called alike; rank 0's plans.
class Follower {
 public:
  // `samples`: whether iterations' times say anything here (an accelerator's are not the host's). `on`: a new plan is made
  // once the links or the compute have changed. `grounds`: returns what such a plan rests on besides times.
  Follower(Job& job, bool samples, bool on, std::function<Grounds()> grounds)
      : job_(job), samples_(samples), on_(on && samples), grounds_(std::move(grounds)) {}

  // A plan has come into force that is predicted to take so long an iteration; `of_this_run`: it is what was proposed for
  // times observed under the plan before.
  void plan_installed(const Plan& plan, const Workload& workload, const Cluster& cluster, double iteration_ns,
                      bool of_this_run);
  // A plan has come into force of which it is not known what it should take, or which is not to be sampled.
  void nothing_known();

  // Returns whether rank 0 has a better plan, which proposal() then is. The same on all ranks.
  bool iteration_ended();
  // Returns rank 0's proposal, on all ranks: the new plan and the one in force. Collective.
  Decision proposal();

  // Whether a plan is being made here.
  bool planning() const { return planner_.busy(); }
  // Waits for an exchange that is under way. All ranks have begun it.
  void end_exchange();
  // Returns what was measured of the plan in force; nothing if too little was. Collective.
  std::optional<Observer::Report> report();
  // Waits for a plan that is being made. What ranks exchange is left alone.
  void close();

 private:
  struct Known {
    Plan plan;
    Workload workload;
    Cluster cluster;
  };
  void forget();
  void choose_interval(double seconds);
  bool end_sample();
  void replan(bool changed);
  void take_plan();
  void plan_for_what_is_seen();
  void propose_plan_before();

  Job& job_;
  bool samples_, on_;
  std::function<Grounds()> grounds_;
  std::optional<Known> known_;
  std::unique_ptr<Observer> observer_;
  std::int64_t every_ = 0, iterations_ = 0;  // between samples; since the last
  IterationStatistics sample_;               // whose exchange is under way
  std::unique_ptr<Job::Exchange> exchange_;
  EchoTimes usual_;  // what echoes take, for the proposal that comes into force
  bool echoing_ = false;

  // Rank 0's.
  Replanning replanning_;
  std::optional<Plan> before_;  // that the plan in force has replaced
  std::optional<Decision> proposal_;
  EchoTimes usual_then_;             // when the proposal was asked for
  std::int64_t plans_ = 0;           // that have come into force
  std::int64_t planned_under_ = -1;  // of which of them the plan is thought that is being made
  std::optional<GradientsSeen> gradients_then_;
  Planner planner_;
};

}  // namespace gradweave::control
