#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "base/names.h"
#include "base/quoted.h"
#include "gradweave/cost.h"
#include "gradweave/error.h"
#include "gradweave/ranked_plans.h"
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

}  // namespace

void check_tuning(const SchemeOptions& options, int trials) {
  if (trials < kLeastTrials || trials > kMostTrials) {
    throw InvalidInput(std::to_string(trials) + " trials", "tune",
                       "give " + std::to_string(kLeastTrials) + " to " + std::to_string(kMostTrials));
  }
  if (options.scheme() == kAuto) return;
  const std::vector<const OptionSpec*> tuned = tuned_options(find_scheme(options.scheme()));
  if (tuned.empty()) {
    std::vector<std::string_view> names;
    for (const SchemeInfo& each : schemes()) {
      if (each.name == kAuto || !tuned_options(each).empty()) names.push_back(each.name);
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
  // Of a scheme's plans.
  struct Search {
    std::optional<Plan> plan_with(const std::vector<double>& values) const {
      try {
        SchemeOptions with = options;
        for (std::size_t i = 0; i < tuned.size(); ++i)
          with.set(tuned[i]->name, value_of(*tuned[i], values[i]));
        PlanResult result = make_plan(workload, cluster, with);
        if (Plan* plan = std::get_if<Plan>(&result)) return std::move(*plan);
      } catch (const InvalidInput&) {  // too many slices, for instance
      }
      return std::nullopt;
    }

    Workload workload;
    Cluster cluster;
    SchemeOptions options;  // of the start
    std::vector<const OptionSpec*> tuned = tuned_options(find_scheme(options.scheme()));
  };

  State(Search of_start, Plan start, int trials)
      : search(std::move(of_start)),
        tuner(parameters_of(search->tuned, search->workload), values_of(search->options, search->tuned),
              trials) {
    plans.push_back(std::move(start));
  }
  explicit State(std::vector<Given> given) : tuner({}, {}, static_cast<int>(given.size())) {
    for (Given& each : given) {
      plans.emplace_back(std::move(each.plan));
      weights.push_back(each.weight);
    }
  }

  double weight(std::size_t place) const { return search ? 1 : weights[place]; }

  std::optional<Search> search;  // nothing of given plans
  Tuner tuner;
  std::deque<std::optional<Plan>> plans;  // of the tuner's trials; places stay
  std::vector<double> weights;            // of given plans
};

PlanTuner::PlanTuner(Workload workload, Cluster cluster, Plan start, int trials) {
  SchemeOptions options = parse_options(start.scheme, start.options);
  check_tuning(options, trials);
  state_ = std::make_unique<State>(State::Search{std::move(workload), std::move(cluster), std::move(options)},
                                   std::move(start), trials);
}

PlanTuner::PlanTuner(std::vector<Given> plans) : state_(std::make_unique<State>(std::move(plans))) {}

PlanTuner::~PlanTuner() = default;

const Plan* PlanTuner::next() {
  Tuner& tuner = state_->tuner;
  auto& plans = state_->plans;
  while (const std::optional<std::size_t> place = tuner.next()) {
    if (*place < plans.size()) return &*plans[*place];
    const std::optional<Plan> plan = state_->search->plan_with(tuner.trials()[*place].values);
    const auto same = std::ranges::find_if(
        plans, [&](const std::optional<Plan>& known) { return plan && known && do_the_same(*known, *plan); });
    if (plan && same == plans.end()) return &*plans.emplace_back(plan);
    tuner.assume(plan ? tuner.trials()[static_cast<std::size_t>(same - plans.begin())].median()
                      : std::numeric_limits<double>::infinity());
    plans.emplace_back();
  }
  return nullptr;
}

void PlanTuner::add(double seconds) { state_->tuner.add(seconds * state_->weight(*state_->tuner.next())); }

const Plan& PlanTuner::best() const { return *state_->plans[state_->tuner.best()]; }

std::vector<PlanTuner::Trial> PlanTuner::trials() const {
  std::vector<Trial> result;
  for (std::size_t i = 0; i < state_->tuner.trials().size(); ++i) {
    const Tuner::Trial& measured = state_->tuner.trials()[i];
    if (measured.assumed || measured.seconds.empty()) continue;
    MadeBy made = made_by(*state_->plans[i]);
    Trial& trial = result.emplace_back(Trial{.scheme = std::move(made.scheme)});
    for (const double seconds : measured.seconds) trial.seconds.push_back(seconds / state_->weight(i));
    if (state_->search) {
      std::erase_if(made.options, [&](const auto& option) {
        return std::ranges::find(state_->search->tuned, option.first, &OptionSpec::name) ==
               state_->search->tuned.end();
      });
    }
    trial.options = std::move(made.options);
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
