#include "control/decision.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "base/text.h"
#include "gradweave/error.h"
#include "gradweave/json.h"
#include "gradweave/ranked_plans.h"
#include "gradweave/schemes.h"
#include "peers/sign.h"
#include "schemes/compressed.h"

namespace gradweave::control {
namespace {

using Options = std::map<std::string, std::string>;

// Of links that nothing is known of: overlap is not hopeless, and start-ups count.
constexpr Nanoseconds kUnknownStartup = 1000;

Plan planned(const std::string& scheme, const Workload& workload, const Cluster& cluster,
             const Options& options = {}) {
  PlanResult result = make_plan(scheme, workload, cluster, options);
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&result))
    throw InvalidInput(infeasible->reason, "scheme '" + scheme + "' found no plan");
  return std::get<Plan>(std::move(result));
}

// The options that a scheme is planned with: those asked for, then, if they say nothing of it, without slices of tensors,
// should the optimizer not step them.
std::vector<Options> variants(const Request& request) {
  std::vector<Options> all{request.options};
  const std::vector<OptionSpec>& known = find_scheme(request.scheme).options;
  if (std::ranges::find(known, "slices", &OptionSpec::name) != known.end()) {
    if (Options without = request.options; without.try_emplace("slices", "off").second)
      all.push_back(std::move(without));
  }
  return all;
}

// The scheme's own plans, or `auto`'s, best first.
std::vector<Candidate> ranked(const Request& request, const Workload& workload, const Costs& costs) {
  std::vector<Candidate> entries;
  if (request.scheme != kAuto) {
    for (const Options& options : variants(request))
      entries.push_back(
          candidate_of(planned(request.scheme, workload, costs.usual, options), workload, costs));
    return entries;
  }
  RankedPlans plans = ranked_plans(workload, costs.usual, parse_options(kAuto, request.options),
                                   costs.staged ? &*costs.staged : nullptr, costs.overheads);
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&plans))
    throw InvalidInput(infeasible->reason, "scheme 'auto' found no plan");
  for (RankedPlan& each : std::get<std::vector<RankedPlan>>(plans)) {
    std::string scheme = made_by(each.plan).scheme;
    entries.push_back({std::move(scheme), std::move(each.plan), std::move(each.prediction)});
  }
  return entries;
}

std::vector<Link> guessed(const std::vector<std::string>& names, Decimal us_per_byte) {
  std::vector<Link> links;
  for (const std::string& name : names)
    links.push_back({.name = name, .startup_ns = kUnknownStartup, .us_per_byte = us_per_byte});
  return links;
}

// Inside nodes all is as between them.
Cluster guessed(const JobLinks& links, int workers, Decimal us_per_byte) {
  Cluster cluster{.workers = workers, .workers_per_node = links.workers_per_node};
  cluster.links = guessed(links.links, us_per_byte);
  if (!links.inside.empty()) cluster.inside = Inside{.links = guessed(links.inside, us_per_byte)};
  return cluster;
}

std::int64_t elements_of(const Workload& workload) {
  std::int64_t sum = 0;
  for (const Layer& layer : workload.layers) {
    for (const Tensor& tensor : layer.tensors) sum += tensor.numel;
  }
  return sum;
}

class Choice {
 public:
  Choice(Decision& decision, const Grounds& grounds)
      : decision_(decision), grounds_(grounds), by_auto_(grounds.request.scheme == kAuto) {}

  void make() {
    const Workload& workload = decision_.workload;
    std::vector<Candidate> entries = ranked(grounds_.request, workload, decision_.costs);
    const Plan best = entries.front().plan;
    const double best_ns = entries.front().prediction.iteration_ns();
    const std::string best_scheme = entries.front().scheme;
    std::string refused;
    for (const std::size_t place : order(entries)) {
      Candidate& entry = entries[place];
      const auto same = [&](const Candidate& other) { return do_the_same(other.plan, entry.plan); };
      if (std::ranges::any_of(decision_.candidates, same)) continue;
      if (std::string reason = refusal(entry.plan); reason.empty()) {
        decision_.candidates.push_back(std::move(entry));
      } else if (place == 0) {
        refused = std::move(reason);
      }
      if (std::ssize(decision_.candidates) == grounds_.candidates) break;
    }
    if (decision_.candidates.empty() && !by_auto_)
      throw InvalidInput(refused, "scheme '" + grounds_.request.scheme + "' doesn't work with this loop");
    const bool best_stands = !decision_.candidates.empty() && decision_.candidates.front().plan == best;
    if (by_auto_) {
      decision_.candidates.push_back(
          candidate_of(planned(kStarter, workload, decision_.costs.usual), workload, decision_.costs));
    }
    if (!refused.empty()) {
      decision_.passed_over = best_scheme + " was not chosen, because " + refused;
    } else if (!best_stands && grounds_.gradients) {
      decision_.passed_over = best_scheme + " would take " + fixed_text(best_ns / 1e6, 1) + " ms" +
                              ", but makes only " +
                              fixed_text(grounds_.gradients->progress(best, workload), 2) +
                              " times the progress of plain training in an iteration";
    }
    if (best.search_report) decision_.if_corrected = runnable(best.search_report->if_corrected);
    if (!by_auto_ && grounds_.gradients)
      decision_.objection = grounds_.gradients->objection(decision_.candidates.front().plan, workload);
    decision_.ddp_ns = ddp_ns();
  }

 private:
  std::vector<std::size_t> order(const std::vector<Candidate>& entries) const {
    std::vector<double> times;
    for (const Candidate& entry : entries)
      times.push_back(time_to_progress(entry, decision_.workload, grounds_.gradients));
    if (by_auto_ && grounds_.gradients)
      return order_within(times,
                          number_of(*parse_options(kAuto, grounds_.request.options).value("tolerance")));
    std::vector<std::size_t> as_they_stand(entries.size());
    for (std::size_t n = 0; n < entries.size(); ++n) as_they_stand[n] = n;
    return as_they_stand;
  }

  std::string refusal(const Plan& plan) const {
    std::string reason = grounds_.unrunnable(plan, decision_.workload);
    if (reason.empty()) reason = grounds_.loop.refusal(demands_of(plan));
    if (reason.empty() && by_auto_ && grounds_.gradients)
      reason = grounds_.gradients->objection(plan, decision_.workload);
    if (reason.empty() && by_auto_ && grounds_.unseen &&
        std::ranges::any_of(effects_of(plan), has_to_be_seen)) {
      reason =
          "it changes training, and gradients, which say whether training supports that, were not compared "
          "in the job's first iterations";
    }
    return reason;
  }

  // The plan that averages would give, where this loop can run it.
  std::optional<PlanSummary> runnable(const std::optional<PlanSummary>& summary) const {
    if (!summary) return std::nullopt;
    try {
      const Plan plan = planned(summary->scheme, decision_.workload, decision_.costs.usual, summary->options);
      return refusal(plan).empty() ? summary : std::nullopt;
    } catch (const InvalidInput&) {  // no plan of it
      return std::nullopt;
    }
  }

  std::optional<double> ddp_ns() const {
    try {
      return candidate_of(planned("ddp", decision_.workload, decision_.costs.usual), decision_.workload,
                          decision_.costs)
          .prediction.iteration_ns();
    } catch (const InvalidInput&) {  // no plan of it for this workload
      return std::nullopt;
    }
  }

  Decision& decision_;
  const Grounds& grounds_;
  bool by_auto_;
};

}  // namespace

double GradientsSeen::progress(const Plan& plan, const Workload& workload) const {
  return gradweave::progress(plan, workload, estimates, static_cast<int>(plan.workers));
}

std::string GradientsSeen::objection(const Plan& plan, const Workload& workload) const {
  return gradweave::objection(plan, workload, estimates, rule);
}

Candidate candidate_of(const Plan& plan, const Workload& workload, const Costs& costs) {
  return {made_by(plan).scheme, plan, simulate(plan, workload, costs.of(plan), costs.overheads)};
}

double time_to_progress(const Candidate& candidate, const Workload& workload,
                        const std::optional<GradientsSeen>& gradients) {
  const double far = gradients ? gradients->progress(candidate.plan, workload) : 1.0;
  return candidate.prediction.iteration_ns() / far;
}

std::vector<std::size_t> order_within(std::span<const double> times, double tolerance) {
  std::vector<std::size_t> left(times.size()), order;
  for (std::size_t n = 0; n < left.size(); ++n) left[n] = n;
  while (!left.empty()) {
    std::vector<double> of_left;
    for (const std::size_t n : left) of_left.push_back(times[n]);
    const auto next = left.begin() + static_cast<std::ptrdiff_t>(first_within(of_left, tolerance));
    order.push_back(*next);
    left.erase(next);
  }
  return order;
}

Decision decide(const Workload& workload, const Costs& costs, const Grounds& grounds) {
  Decision decision{.workload = workload, .costs = costs};
  try {
    Choice(decision, grounds).make();
  } catch (const std::exception& error) {
    decision.candidates.clear();
    decision.error = error.what();
    if (decision.error.empty()) decision.error = "planning failed";
  }
  return decision;
}

Plan starter(const Workload& workload, const JobLinks& links, int workers) {
  return planned(kStarter, workload, guessed(links, workers, {1, 1000}));
}

namespace {

std::optional<Plan> expected_plan(const Request& request, const Workload& unprofiled, const JobLinks& links,
                                  int workers) {
  if (request.scheme == kAuto) return std::nullopt;
  Workload workload = unprofiled;
  for (Layer& layer : workload.layers) layer.forward_ns = 1'000'000, layer.backward_ns = 2'000'000;
  // Communication as long as the compute: overlap is worth while, and not hopeless.
  const double us_per_byte = 3000.0 * static_cast<double>(workload.layers.size()) /
                             (4.0 * static_cast<double>(elements_of(workload)));
  try {
    const Cluster cluster = guessed(links, workers, decimal_from_double(us_per_byte, "us_per_byte"));
    return planned(request.scheme, workload, cluster, variants(request).back());
  } catch (const InvalidInput&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<Demands> expected_demands(const Request& request, const Workload& unprofiled,
                                        const JobLinks& links, int workers) {
  const std::optional<Plan> plan = expected_plan(request, unprofiled, links, workers);
  return plan ? std::optional(demands_of(*plan)) : std::nullopt;
}

bool may_average_gains(const Request& request, const Workload& unprofiled, const JobLinks& links,
                       int workers) {
  if (request.scheme != kAuto) {
    const std::optional<Plan> plan = expected_plan(request, unprofiled, links, workers);
    return plan && averages_gains(*plan);
  }
  const SchemeOptions options = parse_options(kAuto, request.options);
  const std::vector<Effect> allowed = allowed_effects(options);
  const auto allows = [&](Effect effect) { return std::ranges::find(allowed, effect) != allowed.end(); };
  return (allows(Effect::kLocal) || allows(Effect::kCorrected)) &&
         (allows(Effect::kCompressed) || !compression_of(options).name.empty());
}

void check_runs(const Request& request, const std::vector<Tensor>& tensors, int workers, int workers_per_node,
                const Unrunnable& unrunnable) {
  const bool levels = workers_per_node > 1;
  Options options;
  for (const auto& [name, value] : request.options) {
    if (levels || name.starts_with("compressor") || name.starts_with("outer_")) options.emplace(name, value);
  }
  if (request.scheme == kAuto || (options.empty() && !levels)) return;
  Workload workload{.name = "any"};
  std::set<DType> seen;
  for (const Tensor& tensor : tensors) {
    if (!seen.insert(tensor.dtype).second) continue;
    workload.layers.push_back({.name = tensor.name,
                               .forward_ns = 1000,
                               .backward_ns = 1000,
                               .tensors = {{.name = tensor.name, .numel = 4096, .dtype = tensor.dtype}}});
  }
  JobLinks links{{"any"}};
  if (levels) links = {{"any"}, {"inside"}, workers_per_node};
  const PlanResult result = make_plan(request.scheme, workload, guessed(links, workers, {1, 100}), options);
  const Plan* plan = std::get_if<Plan>(&result);
  if (plan == nullptr) return;  // none for this workload, which isn't the model's
  if (const std::string reason = unrunnable(*plan, workload); !reason.empty()) throw InvalidInput(reason, "");
}

std::string to_text(const Decision& decision) {
  const Costs& costs = decision.costs;
  const auto& [mantissa, scale] = costs.overheads.contention;
  std::vector<std::string> fields{decision.error,
                                  to_json(decision.workload),
                                  to_json(costs.usual),
                                  costs.staged ? to_json(*costs.staged) : "",
                                  std::to_string(costs.overheads.optimizer_ns),
                                  std::to_string(mantissa),
                                  std::to_string(scale),
                                  std::to_string(costs.overheads.burst_ns)};
  for (const Candidate& each : decision.candidates) fields.push_back(to_json(each.plan));
  return peers::join(fields);
}

Decision decision_of(const std::string& text) {
  constexpr std::size_t kPlans = 8;  // from this field on
  const std::vector<std::string> fields = peers::fields_of(text, kPlans);
  Decision decision{.workload = parse_workload(fields[1]),
                    .costs = {.usual = parse_cluster(fields[2])},
                    .error = fields[0]};
  if (!fields[3].empty()) decision.costs.staged = parse_cluster(fields[3]);
  const auto number = [&](std::size_t field) { return peers::number_of(fields[field]).value_or(0); };
  decision.costs.overheads.optimizer_ns = number(4);
  decision.costs.overheads.contention = {number(5), static_cast<std::int32_t>(number(6))};
  decision.costs.overheads.burst_ns = number(7);
  for (std::size_t n = kPlans; n < fields.size(); ++n) {
    Plan plan = parse_plan(fields[n]);
    std::string scheme = made_by(plan).scheme;
    decision.candidates.push_back({std::move(scheme), std::move(plan), {}});
  }
  return decision;
}

}  // namespace gradweave::control
