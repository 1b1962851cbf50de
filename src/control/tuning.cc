#include "control/tuning.h"

#include <limits>
#include <utility>

#include "base/statistics.h"
#include "gradweave/json.h"
#include "peers/sign.h"
#include "report/result_json.h"

namespace gradweave::control {
namespace {

constexpr std::size_t kMeasured = 10;  // iterations of a trial, as in DeAR, section IV.B

double seconds_of(Time time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void Tuning::begin(const Plan& start, const Workload& workload, const Cluster& cluster) {
  under_way_ = true;
  began_ = job_.now();
  clear();
  if (!job_.decides()) return;
  tuner_ = std::make_unique<PlanTuner>(workload, cluster, start, trials_);
  tuner_->next();
}

void Tuning::end() {
  under_way_ = false;
  tuner_.reset();
}

bool Tuning::iteration_ended() {
  const Time now = job_.now();
  if (++iterations_ > kSettling) seconds_.push_back(seconds_of(now - last_));
  last_ = now;
  return seconds_.size() == kMeasured;
}

Plan Tuning::next(bool failed) {
  double seconds = std::numeric_limits<double>::infinity();
  if (!failed) seconds = job_.largest("the exchange of measured times", {median_of(seconds_)}).front();
  clear();
  std::string told;
  if (tuner_) {
    tuner_->add(seconds);
    const Plan* plan = tuner_->next();
    const TuningReport report{.trials = tuner_->trials(),
                              .best = tuner_->best_trial(),
                              .ended = plan == nullptr,
                              .seconds = seconds_of(job_.now() - began_)};
    told = peers::join({dump(to_object(report)), to_json(plan == nullptr ? tuner_->best() : *plan)});
  }
  const std::vector<std::string> fields =
      peers::fields_of(job_.gather("the agreement on a plan", told)[0], 2);
  report_ = tuning_report_of(Json::parse(fields[0]));
  if (report_->ended) end();
  return parse_plan(fields[1]);
}

void Tuning::clear() {
  iterations_ = 0;
  seconds_.clear();
}

}  // namespace gradweave::control
