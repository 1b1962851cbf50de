#include "control/follower.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gradweave/json.h"
#include "peers/sign.h"

namespace gradweave::control {
namespace {

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

void Follower::nothing_known() {
  forget_samples();
  sampler_.stop();
  plan_.reset();
  proposals_.plan_installed({}, std::nullopt, 0);
}

void Follower::plan_installed(const Plan& plan, const Workload& workload, const Costs& costs,
                              double iteration_ns, bool of_this_run) {
  const bool replaces = of_this_run && sampler_.started() && plan_ != plan;
  const double before_ns = replaces ? sampler_.observer().iteration_ns() : 0;
  forget_samples();
  proposals_.plan_installed(costs, replaces ? std::move(plan_) : std::nullopt, before_ns);
  plan_ = plan;
  sampler_.start(plan, workload, costs, iteration_ns, of_this_run, of_this_run ? usual_ : EchoTimes(), on_);
}

bool Follower::iteration_ended() {
  if (!on_ || !sampler_.started()) return false;
  if (std::exchange(announced_, false)) return true;
  const Sampler::Due due = sampler_.iteration_ended();
  if (due == Sampler::Due::kExchange) {
    proposals_.look();
    sampler_.exchange(proposals_.proposal().has_value());
  }
  if (due == Sampler::Due::kEnd) end_sample();  // beside the training until here
  return std::exchange(announced_, false);
}

void Follower::end_sample() {
  const Sampler::Ended ended = sampler_.end_exchange();
  announced_ = announced_ || ended.announced;
  if (ended.taken && !announced_ && job_.decides())
    proposals_.sampled(std::exchange(changed_, false) || ended.changed, sampler_.observer(), *plan_);
}

Decision Follower::proposal() {
  const std::optional<Decision>& own = proposals_.proposal();
  const std::string mine = own ? peers::join({control::to_text(*own), to_text(proposals_.usual())}) : "";
  const std::vector<std::string> fields =
      peers::fields_of(job_.gather("the agreement on a plan", mine)[0], 2);
  usual_ = echoes_of(fields[1]);
  return own ? proposals_.take() : decision_of(fields[0]);
}

void Follower::end_exchange() {
  if (sampler_.exchanging()) end_sample();
}

std::optional<Observer::Report> Follower::report() {
  if (!sampler_.started()) return std::nullopt;
  end_exchange();
  if (sampler_.sample_now()) changed_ = true;
  if (!sampler_.observer().sampled()) return std::nullopt;
  return sampler_.observer().report();
}

void Follower::close() {
  sampler_.drop_exchange();
  proposals_.close();
}

}  // namespace gradweave::control
