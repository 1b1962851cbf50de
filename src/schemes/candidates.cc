#include "schemes/candidates.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gradweave/error.h"
#include "schemes/compressed.h"

namespace gradweave {
namespace {

// Of sizes in bytes: total / 2 to total / 64.
constexpr int kFewestParts = 2, kMostParts = 64;
// Plans of more ops than this are not worth simulating: start-ups would dominate them.
constexpr std::int64_t kSmallestSize = 4096;
constexpr std::string_view kPeriod = "period";

}  // namespace

std::string to_string(const Candidate& candidate) {
  std::string text(candidate.scheme);
  const char* separator = " ";
  for (const auto& [name, value] : candidate.options.written()) {
    text.append(separator).append(name).append("=").append(value);
    separator = ", ";
  }
  return text;
}

PlanSummary summary_of(const Candidate& candidate) {
  return {.scheme = std::string(candidate.scheme),
          .options = candidate.plan.options,
          .iteration_us = nearest_us(candidate.result.iteration_ns()),
          .effects = candidate.effects};
}

double nearest_us(double ns) { return std::round(ns * 1000) / 1e6; }

double bound_us(double ns) { return std::floor(ns * 1000) / 1e6; }

bool faster(const SimulationResult& x, const SimulationResult& y) {
  __extension__ using Wide = __int128;
  return Wide{x.cycle_ns} * y.cycle_iterations < Wide{y.cycle_ns} * x.cycle_iterations;
}

void CandidateMaker::add(const SchemeOptions& options, std::vector<Candidate>& candidates) const {
  try {
    PlanResult planned = make_plan(workload_, cluster_, options);
    Plan* plan = std::get_if<Plan>(&planned);
    if (plan == nullptr) return;
    Candidate candidate{options.scheme(), options, std::move(*plan), {}, {}};
    candidate.result = simulate(candidate.plan, workload_, cluster_, overheads_);
    candidate.effects = effects_of(candidate.plan);
    candidates.push_back(std::move(candidate));
  } catch (const InvalidInput& error) {
    // A grid's value that this workload does not allow, or a compressor that the collectives can't carry.
    if (!refusal_) refusal_ = error;
  }
}

std::vector<OptionValue> CandidateMaker::grid(const OptionSpec& spec) const {
  std::vector<OptionValue> values;
  if (is_compressor_option(spec.name)) return values;
  if (spec.type == OptionType::kText) {
    for (std::string_view choice : spec.choices) {
      if (choice != spec.default_value) values.emplace_back(std::string(choice));
    }
  } else if (spec.unit == Unit::kBytes) {
    const WorkloadIndex index(workload_);
    for (int parts = kFewestParts; parts <= kMostParts; parts *= 2) {
      const std::int64_t size = index.total_bytes / parts;
      if (size >= kSmallestSize) values.emplace_back(size);
    }
  }
  return values;
}

void CandidateMaker::tune(const SchemeOptions& options, std::vector<Candidate>& candidates) const {
  const std::size_t first = candidates.size();
  add(options, candidates);
  if (candidates.size() == first) return;
  std::size_t best = first;
  for (const OptionSpec& spec : find_scheme(options.scheme()).options) {
    if (options.find(spec.name) != nullptr) continue;
    const SchemeOptions fixed = candidates[best].options;
    for (const OptionValue& value : grid(spec)) {
      SchemeOptions tried = fixed;
      tried.set(spec.name, value);
      const std::size_t before = candidates.size();
      add(tried, candidates);
      if (candidates.size() > before && faster(candidates.back().result, candidates[best].result))
        best = before;
    }
  }
  add_shorter_periods(options, first, candidates);
}

void CandidateMaker::add_shorter_periods(const SchemeOptions& options, std::size_t first,
                                         std::vector<Candidate>& candidates) const {
  const OptionSpec* period = options.spec(kPeriod);
  if (period == nullptr || period->default_value.empty() || options.find(kPeriod) != nullptr) return;
  std::vector<std::pair<Demands, std::size_t>> best;
  for (std::size_t i = first; i < candidates.size(); ++i) {
    const Demands demands = demands_of(candidates[i].plan);
    if (!demands.local_steps) continue;  // it averages nothing, as those of `optimal` that are exact
    const auto same = std::ranges::find(best, demands, &std::pair<Demands, std::size_t>::first);
    if (same == best.end()) {
      best.emplace_back(demands, i);
    } else if (faster(candidates[i].result, candidates[same->second].result)) {
      same->second = i;
    }
  }
  for (const auto& [demands, i] : best) {
    SchemeOptions shorter = candidates[i].options;
    for (auto each = std::get<std::int64_t>(*options.value(kPeriod)) - 1; each >= 1; --each) {
      shorter.set(kPeriod, each);
      add(shorter, candidates);
    }
  }
}

}  // namespace gradweave
