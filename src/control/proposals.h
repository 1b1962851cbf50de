// Whether another plan should come into force than the one that does, and which: made beside the training for what was seen of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "control/decision.h"
#include "control/planner.h"
#include "gradweave/observe.h"

namespace gradweave::control {

// Of the rank that decides; on others nothing is ever proposed.
class Proposals {
 public:
  // `grounds`: returns what a plan rests on besides times.
  explicit Proposals(std::function<Grounds()> grounds) : grounds_(std::move(grounds)) {}

  // A plan has come into force, where messages take `costs`. If it was proposed here: in place of `before`, under which an
  // iteration took `before_ns`.
  void plan_installed(const Costs& costs, std::optional<Plan> before, double before_ns);
  // A sample has ended, and no rank has announced a plan. `changed`: what Observer::add() returned. Begins to make a plan, or
  // proposes the one before, if that is due.
  void sampled(bool changed, const Observer& seen, const Plan& in_force);
  // Looks whether a plan was made.
  void look();
  // Whether a plan is being made.
  bool planning() const { return planner_.busy(); }

  // The new plan and the one in force; nothing where there is no better one.
  const std::optional<Decision>& proposal() const { return proposal_; }
  // What echoes took when it was asked for.
  const EchoTimes& usual() const { return usual_; }
  Decision take() { return *std::exchange(proposal_, std::nullopt); }

  // Waits for a plan that is being made, and drops it.
  void close() { planner_.close(); }

 private:
  void plan_for(const Observer& seen, const Plan& in_force);
  void propose_before(const Observer& seen, const Plan& in_force);

  std::function<Grounds()> grounds_;
  Replanning replanning_;
  Costs costs_;                 // that were planned for
  std::optional<Plan> before_;  // that the plan in force has replaced
  std::optional<Decision> proposal_;
  EchoTimes usual_;
  std::int64_t plans_ = 0;                  // that have come into force
  std::int64_t planned_under_ = -1;         // of which of them the plan is thought that is being made
  std::optional<GradientsSeen> gradients_;  // that it rests on
  Planner planner_;
};

}  // namespace gradweave::control
