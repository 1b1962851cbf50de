#include "control/proposals.h"

namespace gradweave::control {

constexpr double kGain = 0.03;  // by which a new plan has to be faster, relative

void Proposals::plan_installed(const Costs& costs, std::optional<Plan> before, double before_ns) {
  costs_ = costs;
  ++plans_;
  proposal_.reset();
  before_ = std::move(before);
  replanning_.installed(before_ns);
}

void Proposals::sampled(bool changed, const Observer& seen, const Plan& in_force) {
  look();
  using Step = Replanning::Step;
  const Step step = replanning_.sampled(changed, seen.iteration_ns(), planner_.busy(), proposal_.has_value());
  if (step == Step::kPlan) plan_for(seen, in_force);
  if (step == Step::kTakeBack) propose_before(seen, in_force);
}

void Proposals::plan_for(const Observer& seen, const Plan& in_force) {
  proposal_.reset();  // which was made for what is no more
  planned_under_ = plans_;
  usual_ = seen.usual();
  Grounds grounds = grounds_();
  gradients_ = grounds.gradients;
  planner_.start([workload = seen.workload(), costs = costs_.with(in_force, seen.cluster()),
                  grounds = std::move(grounds), stays = in_force] {
    Decision decision = decide(workload, costs, grounds);
    if (!decision.candidates.empty()) {
      decision.candidates.resize(1);
      decision.candidates.push_back(candidate_of(stays, workload, costs));
    }
    return decision;
  });
}

// The plan that is in force when a decision comes may be another than when it was asked for: then nobody wants it.
void Proposals::look() {
  std::optional<Decision> made = planner_.take();
  if (!made || planned_under_ != plans_) return;
  if (made->candidates.size() == 2) {
    const auto time = [&](std::size_t n) {
      return time_to_progress(made->candidates[n], made->workload, gradients_);
    };
    if (time(0) < (1 - kGain) * time(1)) {
      proposal_ = std::move(made);
      return;
    }
  }
  replanning_.no_better();
}

void Proposals::propose_before(const Observer& seen, const Plan& in_force) {
  Decision decision{
      .workload = seen.workload(), .costs = costs_.with(in_force, seen.cluster()), .takes_back = true};
  usual_ = seen.usual();
  for (const Plan* plan : {&std::as_const(*before_), &in_force})
    decision.candidates.push_back(candidate_of(*plan, decision.workload, decision.costs));
  proposal_ = std::move(decision);
}

}  // namespace gradweave::control
