#include "control/controller.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "gradweave/error.h"
#include "gradweave/ranked_plans.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "peers/refusal.h"

namespace gradweave::control {
namespace {

const std::string kChange = "the change of plan";
const std::string kAgreement = "the agreement on a plan";
constexpr double kNoise = 0.03;  // of measured times, relative

}  // namespace

Controller::Controller(Job& job, Loop& loop, ControllerOptions options, Unrunnable unrunnable)
    : job_(job),
      loop_(loop),
      options_(std::move(options)),
      unrunnable_(std::move(unrunnable)),
      telling_(job, options_.tells),
      follower_(job, options_.follows, [this] { return grounds(); }),
      tuning_(job) {
  const int compared = iterations_compared(options_.request, options_.compares_gradients, options_.warm_up);
  if (compared > 0) watch_.emplace(job);
  options_.warm_up = std::max(options_.warm_up, compared);
}

void Controller::begin() {
  if (watch_) watch_->begin();
}

void Controller::layers_known(const Workload& workload, const JobLinks& links) {
  workload_ = workload;
  if (given_) {
    phase_ = Phase::kSettled;
    require_in_force(*std::exchange(given_, std::nullopt));
    return;
  }
  if (const auto demands = expected_demands(options_.request, workload, links, job_.size())) {
    if (demands->partial_steps || demands->makes_momentum) job_.look_at_optimizers();
    loop_.bind(options_.request.scheme, *demands);
  }
  phase_ = Phase::kWarmUp;
  require_in_force(starter(workload, links, job_.size()));
}

void Controller::iteration_ended() {
  telling_.iteration_ended();
  switch (phase_) {
    case Phase::kStarting:
    case Phase::kClosed:
      return;
    case Phase::kWarmUp:
      if (++iterations_ < options_.warm_up) return;
      if (watch_) watch_->end();
      phase_ = Phase::kProfile;
      iterations_ = 0;
      job_.begin_profile(options_.profile_iterations);
      return;
    case Phase::kProfile:
      if (++iterations_ == options_.profile_iterations) decide_and_switch();
      return;
    case Phase::kTuning:
      if (tuning_.iteration_ended()) try_next();
      return;
    case Phase::kSettled:
      if (job_.compiled()) return;
      if (follower_.iteration_ended()) {
        follow();
      } else if (watch_) {
        if (const std::string objection = watch_->iteration_ended(); !objection.empty()) obey(objection);
      }
      return;
  }
}

void Controller::install(const Plan& plan) {
  if (phase_ == Phase::kStarting) {
    given_ = plan;
    return;
  }
  job_.drain(kChange);
  require_in_force(plan);  // else everything goes on as before
  if (profiling()) job_.drop_profile();
  phase_ = Phase::kSettled;
  tuning_.end();
  follower_.end_exchange();
  judge();
  telling_.installed(*plan_, prediction_);
  plan_installed(false);
}

void Controller::go_on(const Plan& plan, const Workload& workload, std::optional<Costs> costs,
                       const std::optional<Seen>& seen, std::int64_t iteration) {
  if (profiling()) job_.drop_profile();
  phase_ = Phase::kSettled;
  given_.reset();
  workload_ = workload;
  costs_ = std::move(costs);
  require_in_force(plan);
  if (seen) {
    for (const auto& [trait, detail] : seen->traits) loop_.saw(trait, detail);
    if (watch_) watch_->restore(seen->gradients);
  } else {
    follower_.keep_plan();
  }
  judge();
  plan_installed(false);
  telling_.resumed(plan, iteration, options_.follows && !seen);
}

void Controller::close(bool failed) {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  if (!failed) telling_.ended();
  follower_.close();
}

// Rank 0 decides on everybody's profile and on what everybody's loop does; all ranks switch after the same iteration.
void Controller::decide_and_switch() {
  const run::LayerTimes mine = job_.end_profile();
  job_.drain(kChange);  // first of all exchanges, since it agrees that all ranks are here
  const run::LayerTimes slowest = of_slowest(mine);
  if (slowest.iterations == 0) {
    const bool starter_stays = options_.request.scheme == kAuto;
    telling_.unprofiled(starter_stays);
    if (starter_stays) {
      phase_ = Phase::kSettled;
      return;
    }
  }
  const Workload workload = run::timed(*workload_, slowest);
  job_.look_at_optimizers();
  adopt_traits();
  Costs costs = job_.measure(workload);
  costs.overheads.optimizer_ns = std::llround(slowest.rest_ns);
  Decision decision = decided(workload, costs);
  if (!decision.error.empty()) throw InvalidInput(decision.error, "");
  const Candidate& chosen = adopt(decision, /*of_this_run=*/false);
  telling_.switched(decision, chosen);
  phase_ = Phase::kSettled;
  if (options_.trials == 0) return;
  phase_ = Phase::kTuning;
  follower_.nothing_known();  // until the last trial
  tuning_.begin(job_.decides() ? tuner_of(decision) : nullptr);
}

// Of `auto` its best plans are tried. One of them has to be faster than the plan in force by more than `auto` ignores, and
// than measured times differ by themselves.
std::unique_ptr<PlanTuner> Controller::tuner_of(const Decision& decision) const {
  const auto& [name, options] = options_.request;
  if (name != kAuto) return std::make_unique<PlanTuner>(*workload_, *cluster_, *plan_, options_.trials);
  const double ignored = std::max(kNoise, number_of(*parse_options(name, options).value("tolerance")));
  const std::optional<GradientsSeen> gradients = grounds().gradients;
  const auto in_force = std::ranges::find(decision.candidates, *plan_, &Candidate::plan);
  const auto end = std::max(in_force + 1, std::prev(decision.candidates.end()));  // but for the starter
  std::vector<PlanTuner::Given> plans;
  for (auto each = in_force; each != end && std::ssize(plans) < options_.trials; ++each) {
    const double far = gradients ? gradients->progress(each->plan, *workload_) : 1;
    plans.push_back({each->plan, (plans.empty() ? 1 - ignored : 1) / far});
  }
  return std::make_unique<PlanTuner>(std::move(plans));
}

// The plan in force has been measured.
void Controller::try_next() {
  job_.drain(kChange);
  Plan next = tuning_.next(/*failed=*/false);
  for (std::string refusal; !(refusal = put_in_force(next)).empty();) {
    if (!tuning_.under_way()) throw InvalidInput(refusal, "");
    telling_.refused(next, refusal);
    next = tuning_.next(/*failed=*/true);
  }
  judge();
  if (tuning_.under_way()) return;
  phase_ = Phase::kSettled;
  plan_installed(false);
  telling_.tuned({made_by(*plan_).scheme, *plan_, *prediction_}, *tuning_.report());
}

void Controller::follow() {
  job_.drain(kChange);
  Decision decision = follower_.proposal();
  const Candidate& chosen = adopt(decision, /*of_this_run=*/true);
  if (chosen.plan != decision.candidates.back().plan)
    telling_.followed(decision, chosen);  // else it was refused
}

void Controller::obey(const std::string& objection) {
  if (options_.request.scheme != kAuto || !costs_) {  // without costs there is no other plan
    telling_.objected(objection);
    return;
  }
  follower_.end_exchange();
  job_.drain(kChange);
  Decision decision = decided(*workload_, *costs_);
  if (!decision.error.empty()) throw InvalidInput("there is no other plan: " + decision.error, objection);
  telling_.obeyed(objection, adopt(decision, /*of_this_run=*/false));
}

run::LayerTimes Controller::of_slowest(const run::LayerTimes& mine) {
  std::vector<double> times = mine.forward_ns;
  times.insert(times.end(), mine.backward_ns.begin(), mine.backward_ns.end());
  times.push_back(mine.rest_ns);
  times.push_back(static_cast<double>(mine.iterations));
  times = job_.largest("the exchange of profiles", times);
  const auto backward = times.begin() + std::ssize(mine.forward_ns), end = times.end() - 2;
  return {{times.begin(), backward}, {backward, end}, end[0], mine.every_layer, std::llround(end[1])};
}

// What some rank's loop does counts for all.
void Controller::adopt_traits() {
  std::vector<double> seen;
  for (const Trait& trait : traits()) seen.push_back(loop_.seen(trait.name) ? 1 : 0);
  seen = job_.largest("the exchange of what loops do", seen);
  for (std::size_t n = 0; n < seen.size(); ++n) {
    if (seen[n] > 0) loop_.saw(traits()[n].name, "on another rank");
  }
}

Grounds Controller::grounds() const {
  Grounds grounds{.request = options_.request,
                  .loop = loop_,
                  .gradients = watch_ ? watch_->seen() : std::nullopt,
                  .unrunnable = unrunnable_};
  grounds.unseen = watch_ && !grounds.gradients;
  grounds.candidates = std::max(grounds.candidates, options_.trials);
  return grounds;
}

// Rank 0's decision, on all ranks.
Decision Controller::decided(const Workload& workload, const Costs& costs) {
  Decision decision;
  if (job_.decides()) decision = decide(workload, costs, grounds());
  const std::string text = job_.gather(kAgreement, job_.decides() ? to_text(decision) : "")[0];
  return job_.decides() ? decision : decision_of(text);
}

// Puts the best of the candidates into force that all ranks can; returns it.
const Candidate& Controller::adopt(Decision& decision, bool of_this_run) {
  workload_ = decision.workload;
  costs_ = decision.costs;
  for (Candidate& candidate : decision.candidates) {
    const std::string refusal = put_in_force(candidate.plan);
    if (refusal.empty()) {
      judge();
      candidate.prediction = *prediction_;
      plan_installed(of_this_run);
      return candidate;
    }
    if (&candidate == &decision.candidates.back()) throw InvalidInput(refusal, "");
    telling_.refused(candidate.plan, refusal);
  }
  throw InvalidInput("there is no plan", kAgreement);
}

// Returns why some rank could not.
std::string Controller::put_in_force(const Plan& plan) {
  std::string refusal = peers::refusal_of(job_.gather(kChange, job_.install(plan, *workload_)));
  if (refusal.empty()) plan_ = plan;
  return refusal;
}

void Controller::require_in_force(const Plan& plan) {
  if (const std::string refusal = put_in_force(plan); !refusal.empty()) throw InvalidInput(refusal, "");
}

// What the plan in force should take, if that is known.
void Controller::judge() {
  cluster_.reset();
  prediction_.reset();
  if (!costs_) return;
  cluster_ = costs_->of(*plan_);
  prediction_ = simulate(*plan_, *workload_, *cluster_, costs_->overheads);
}

// What ops take says nothing yet of links of two levels.
void Controller::plan_installed(bool of_this_run) {
  if (costs_ && !has_levels(costs_->usual)) {
    follower_.plan_installed(*plan_, *workload_, *costs_, prediction_->iteration_ns(), of_this_run);
  } else {
    follower_.nothing_known();
  }
  if (watch_) watch_->plan_installed(*plan_, *workload_);
}

}  // namespace gradweave::control
