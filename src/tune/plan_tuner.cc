#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "base/names.h"
#include "base/quoted.h"
#include "gradweave/cost.h"
#include "gradweave/error.h"
#include "gradweave/schemes.h"
#include "gradweave/tune.h"

namespace gradweave {
namespace {

std::vector<const OptionSpec*> tuned_options(const SchemeInfo& scheme) {
  std::vector<const OptionSpec*> tuned;
  for (const OptionSpec& option : scheme.options) {
    if (option.tuned) tuned.push_back(&option);
  }
  return tuned;
}

OptionValue value_of(const OptionSpec& option, double value) {
  if (option.type == OptionType::kInteger) return static_cast<std::int64_t>(std::llround(value));
  return value;
}

std::vector<TunedParameter> parameters_of(std::span<const OptionSpec* const> options,
                                          const Workload& workload) {
  const std::int64_t model_bytes = WorkloadIndex(workload).total_bytes;
  std::vector<TunedParameter> parameters;
  for (const OptionSpec* option : options) {
    TunedRange range = *option->tuned;
    if (option->unit == Unit::kBytes) range = scaled_to_model(range, option->minimum, model_bytes);
    parameters.push_back({range, option->type == OptionType::kInteger});
  }
  return parameters;
}

// Returns the values of the tuned ones of `options`; nothing unless all are known.
std::vector<double> values_of(const SchemeOptions& options, std::span<const OptionSpec* const> tuned) {
  std::vector<double> values;
  for (const OptionSpec* option : tuned) {
    const std::optional<OptionValue> value = options.value(option->name);
    if (!value) return {};
    values.push_back(number_of(*value));
  }
  return values;
}

bool equal_but_for_options(Plan first, const Plan& second) {
  first.options = second.options;
  return first == second;
}

}  // namespace

void check_tuning(const SchemeOptions& options, int trials) {
  if (trials < kLeastTrials || trials > kMostTrials) {
    throw InvalidInput(std::to_string(trials) + " trials", "tune",
                       "give " + std::to_string(kLeastTrials) + " to " + std::to_string(kMostTrials));
  }
  const std::vector<const OptionSpec*> tuned = tuned_options(find_scheme(options.scheme()));
  if (tuned.empty()) {
    std::vector<std::string_view> names;
    for (const SchemeInfo& each : schemes()) {
      if (!tuned_options(each).empty()) names.push_back(each.name);
    }
    throw InvalidInput(
        "scheme " + in_quotes(options.scheme()) + " has no option that is tuned on the running job", "tune",
        "leave it out, or use one of " + listed(names));
  }
  SchemeOptions with = options;
  for (const OptionSpec* option : tuned) {
    if (with.find(option->name) == nullptr) with.set(option->name, value_of(*option, option->tuned->high));
  }
  find_scheme(options.scheme()).check(with);
}

struct PlanTuner::State {
  State(Workload given_workload, Cluster given_cluster, Plan start, SchemeOptions of_start, int trials)
      : workload(std::move(given_workload)),
        cluster(std::move(given_cluster)),
        options(std::move(of_start)),
        tuned(tuned_options(find_scheme(start.scheme))),
        tuner(parameters_of(tuned, workload), values_of(options, tuned), trials) {
    plans.push_back(std::move(start));
  }

  std::optional<Plan> plan_with(const std::vector<double>& values) const {
    try {
      SchemeOptions with = options;
      for (std::size_t i = 0; i < tuned.size(); ++i) with.set(tuned[i]->name, value_of(*tuned[i], values[i]));
      PlanResult result = make_plan(workload, cluster, with);
      if (Plan* plan = std::get_if<Plan>(&result)) return std::move(*plan);
    } catch (const InvalidInput&) {  // too many slices, for instance
    }
    return std::nullopt;
  }

  Workload workload;
  Cluster cluster;
  SchemeOptions options;  // of the start
  std::vector<const OptionSpec*> tuned;
  Tuner tuner;
  std::deque<std::optional<Plan>> plans;  // of the tuner's trials; places stay
};

PlanTuner::PlanTuner(Workload workload, Cluster cluster, Plan start, int trials) {
  SchemeOptions options = parse_options(start.scheme, start.options);
  check_tuning(options, trials);
  state_ = std::make_unique<State>(std::move(workload), std::move(cluster), std::move(start),
                                   std::move(options), trials);
}

PlanTuner::~PlanTuner() = default;

const Plan* PlanTuner::next() {
  Tuner& tuner = state_->tuner;
  auto& plans = state_->plans;
  while (const std::optional<std::size_t> place = tuner.next()) {
    if (*place < plans.size()) return &*plans[*place];
    const std::optional<Plan> plan = state_->plan_with(tuner.trials()[*place].values);
    const auto same = std::ranges::find_if(plans, [&](const std::optional<Plan>& known) {
      return plan && known && equal_but_for_options(*known, *plan);
    });
    if (plan && same == plans.end()) return &*plans.emplace_back(plan);
    tuner.assume(plan ? tuner.trials()[static_cast<std::size_t>(same - plans.begin())].mean()
                      : std::numeric_limits<double>::infinity());
    plans.emplace_back();
  }
  return nullptr;
}

void PlanTuner::add(double seconds) { state_->tuner.add(seconds); }

const Plan& PlanTuner::best() const { return *state_->plans[state_->tuner.best()]; }

std::vector<PlanTuner::Trial> PlanTuner::trials() const {
  std::vector<Trial> result;
  for (std::size_t i = 0; i < state_->tuner.trials().size(); ++i) {
    const Tuner::Trial& measured = state_->tuner.trials()[i];
    if (measured.assumed || measured.seconds.empty()) continue;
    Trial& trial = result.emplace_back(Trial{.seconds = measured.seconds});
    for (const OptionSpec* option : state_->tuned) {
      const auto set = state_->plans[i]->options.find(std::string(option->name));
      if (set != state_->plans[i]->options.end()) trial.options.insert(*set);
    }
  }
  return result;
}

std::size_t PlanTuner::best_trial() const {
  const std::vector<Tuner::Trial>& all = state_->tuner.trials();
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(state_->tuner.best());
  return static_cast<std::size_t>(
      std::count_if(all.begin(), end, [](const auto& each) { return !each.assumed; }));
}

}  // namespace gradweave
