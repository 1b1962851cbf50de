#include "control/follower.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "gradweave/json.h"
#include "peers/sign.h"

namespace gradweave::control {
namespace {

constexpr const char* kWhat = "the exchange of measured times";
constexpr double kSampleSeconds = 0.2;  // between two samples
constexpr std::int64_t kLeast = 5, kMost = 16;
constexpr double kAlarmsPerHour = 0.1;  // false ones, where times scatter as if at random
constexpr double kGain = 0.03;          // by which a new plan has to be faster, relative

// In a text that all ranks get: links' names and what an echo took.
std::string to_text(const EchoTimes& times) {
  std::vector<std::string> fields;
  for (const auto& [link, ns] : times) {
    fields.push_back(link);
    fields.push_back(std::to_string(std::llround(ns)));
  }
  return fields.empty() ? "" : peers::join(fields);
}

EchoTimes echoes_of(const std::string& text) {
  EchoTimes times;
  if (text.empty()) return times;
  const std::vector<std::string> fields = peers::split(text);
  for (std::size_t n = 0; n + 1 < fields.size(); n += 2) {
    if (const auto ns = peers::number_of(fields[n + 1])) times[fields[n]] = static_cast<double>(*ns);
  }
  return times;
}

}  // namespace

void Follower::forget() {
  ++plans_;
  exchange_.reset();
  observer_.reset();
  known_.reset();
  proposal_.reset();
  before_.reset();
  if (echoing_) job_.echo_on({});
  echoing_ = false;
  iterations_ = -kSettling;
}

void Follower::nothing_known() {
  forget();
  replanning_.installed(0);
}

void Follower::plan_installed(const Plan& plan, const Workload& workload, const Cluster& cluster,
                              double iteration_ns, bool of_this_run) {
  std::optional<Plan> before;
  double before_ns = 0;
  if (of_this_run && known_ && observer_) {
    before = std::move(known_->plan);
    before_ns = observer_->iteration_ns();
  }
  forget();
  replanning_.installed(before_ns);
  if (!samples_) return;
  before_ = std::move(before);
  known_ = Known{plan, workload, cluster};
  const double seconds = iteration_ns / 1e9;
  choose_interval(seconds);
  const double alarms = kAlarmsPerHour * static_cast<double>(every_) * seconds / 3600;
  observer_ = std::make_unique<Observer>(plan, workload, cluster, alarms, of_this_run,
                                         of_this_run ? usual_ : EchoTimes());
  if (!on_) return;
  job_.echo_on(observer_->idle());
  echoing_ = true;
}

bool Follower::iteration_ended() {
  if (!on_ || !observer_) return false;
  ++iterations_;
  if (iterations_ >= every_) {
    sample_ = job_.statistics(every_);
    if (sample_.iterations > 0) {  // alike on all ranks
      iterations_ = 0;
      take_plan();
      std::vector<double> numbers = to_numbers(sample_);
      const std::vector<double> echoes = job_.echo_ns();
      numbers.insert(numbers.end(), echoes.begin(), echoes.end());
      numbers.push_back(proposal_ ? -1.0 : 0.0);
      exchange_ = job_.begin_smallest(kWhat, numbers);
    }
  } else if (iterations_ == every_ / 2 && exchange_) {  // beside the training until here
    return end_sample();
  }
  return false;
}

// `seconds`: of an iteration, 0 where that is not known.
void Follower::choose_interval(double seconds) {
  const double wanted = seconds > 0 ? std::ceil(kSampleSeconds / seconds) : static_cast<double>(kMost);
  every_ = std::max(
      static_cast<std::int64_t>(std::clamp(wanted, static_cast<double>(kLeast), static_cast<double>(kMost))),
      iterations_ + 1);
}

// Returns whether a plan was announced, alike on all ranks.
bool Follower::end_sample() {
  std::vector<double> numbers = std::exchange(exchange_, nullptr)->wait();
  const bool ready = numbers.back() < 0;
  const std::size_t echoes = observer_->idle().size();
  const std::vector<double> taken(numbers.end() - 1 - static_cast<std::ptrdiff_t>(echoes), numbers.end() - 1);
  numbers.resize(numbers.size() - 1 - echoes);
  const bool changed = observer_->add(from_numbers(numbers, sample_), taken);
  if (std::ranges::find(taken, 0.0) == taken.end()) job_.start_echoes();  // alike on all ranks
  choose_interval(observer_->iteration_ns() / 1e9);
  if (!ready && job_.decides()) replan(changed);
  return ready;
}

void Follower::replan(bool changed) {
  take_plan();
  using Step = Replanning::Step;
  const Step step =
      replanning_.sampled(changed, observer_->iteration_ns(), planner_.busy(), proposal_.has_value());
  if (step == Step::kPlan) plan_for_what_is_seen();
  if (step == Step::kTakeBack) propose_plan_before();
}

void Follower::plan_for_what_is_seen() {
  proposal_.reset();  // which was made for what is no more
  planned_under_ = plans_;
  usual_then_ = observer_->usual();
  Grounds grounds = grounds_();
  gradients_then_ = grounds.gradients;
  planner_.start([workload = observer_->workload(), cluster = observer_->cluster(),
                  grounds = std::move(grounds), stays = known_->plan] {
    Decision decision = decide(workload, cluster, grounds);
    if (!decision.candidates.empty()) {
      decision.candidates.resize(1);
      decision.candidates.push_back(candidate_of(stays, workload, cluster));
    }
    return decision;
  });
}

// The plan that is in force when a decision comes may be another than when it was asked for: then nobody wants it.
void Follower::take_plan() {
  std::optional<Decision> made = planner_.take();
  if (!made || planned_under_ != plans_) return;
  if (made->candidates.size() == 2) {
    const auto time = [&](std::size_t n) {
      return time_to_progress(made->candidates[n], made->workload, gradients_then_);
    };
    if (time(0) < (1 - kGain) * time(1)) {
      proposal_ = std::move(made);
      return;
    }
  }
  replanning_.no_better();
}

void Follower::propose_plan_before() {
  Decision decision{.workload = observer_->workload(), .cluster = observer_->cluster()};
  usual_then_ = observer_->usual();
  for (const Plan* plan : {&*before_, &known_->plan})
    decision.candidates.push_back(candidate_of(*plan, decision.workload, decision.cluster));
  proposal_ = std::move(decision);
}

Decision Follower::proposal() {
  const std::string mine = proposal_ ? peers::join({control::to_text(*proposal_), to_text(usual_then_)}) : "";
  const std::vector<std::string> fields =
      peers::fields_of(job_.gather("the agreement on a plan", mine)[0], 2);
  usual_ = echoes_of(fields[1]);
  return proposal_ ? *std::exchange(proposal_, std::nullopt) : decision_of(fields[0]);
}

void Follower::end_exchange() {
  if (exchange_) end_sample();
}

std::optional<Observer::Report> Follower::report() {
  if (!observer_) return std::nullopt;
  end_exchange();
  const IterationStatistics sample = job_.statistics(every_);
  if (sample.iterations > 0)
    observer_->add(from_numbers(job_.begin_smallest(kWhat, to_numbers(sample))->wait(), sample));
  if (!observer_->sampled()) return std::nullopt;
  return observer_->report();
}

void Follower::close() {
  exchange_.reset();
  planner_.close();
}

}  // namespace gradweave::control
