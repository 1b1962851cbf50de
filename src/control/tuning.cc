#include "control/tuning.h"

#include <limits>
#include <utility>

#include "base/statistics.h"
#include "gradweave/json.h"
#include "peers/sign.h"
#include "report/result_json.h"

namespace gradweave::control {
namespace {

constexpr int kMeasured = 10;  // iterations of a trial, as in DeAR, section IV.B

double seconds_of(Time time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void Tuning::begin(std::unique_ptr<PlanTuner> tuner) {
  under_way_ = true;
  began_ = job_.now();
  iterations_ = 0;
  tuner_ = std::move(tuner);
  if (tuner_) tuner_->next();
}

void Tuning::end() {
  under_way_ = false;
  tuner_.reset();
}

bool Tuning::iteration_ended() {
  if (++iterations_ < kSettling + kMeasured) return false;
  const std::vector<double> times = job_.iteration_ns(kMeasured);
  // None, if no iteration was a whole one: then nothing speaks for the plan.
  seconds_ = times.empty() ? std::numeric_limits<double>::infinity() : median_of(times) / 1e9;
  return true;
}

Plan Tuning::next(bool failed) {
  double seconds = std::numeric_limits<double>::infinity();
  if (!failed) seconds = job_.largest("the exchange of measured times", {seconds_}).front();
  iterations_ = 0;
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

}  // namespace gradweave::control
