// The fastest plan of all schemes within the user's limits.
//
//   allow                            what the plan may do to training: every effect of an admissible plan is
//                                    allowed (effects.h)
//   max_staleness, max_extra_bytes   read off the simulation and the validator
//   tolerance                        a plan that changes training less is preferred while it is slower by at
//                                    most this share
//
// Candidates: every scheme, each tuned over a small grid (candidates.h), `optimal` where it does more than
// that; with `compressed`, the schemes of gradients that are fastest without compression under every compressor
// too, and schemes of averages under the codec that they choose: fewer bits harm less than rarer averages. The
// fastest admissible candidate sets the time to meet; of those within `tolerance` of it the one that changes
// training least is chosen; then the faster, the one of less staleness, of less memory, the one listed first.
//
// Default of `allow`: exact, so that nothing but the speed changes unless it is asked for. What `corrected` in
// addition would give is found beside and said: averages that arrive late and are corrected kept the accuracy
// of synchronous training within 0.3 points on shuffled shards; plain delayed updates diverged at the same
// learning rate (docs/schemes/auto.md has the figures).
//
// ranked_plans() repeats the choice without the plans that were chosen before.
// Complexity: some 100 plans and simulations; no clock, so the choice is the same everywhere.
#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <tuple>

#include "base/names.h"
#include "base/quoted.h"
#include "gradweave/compression.h"
#include "gradweave/error.h"
#include "gradweave/ranked_plans.h"
#include "schemes/candidates.h"
#include "schemes/compressed.h"
#include "schemes/optimal.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

constexpr std::string_view kDefaultAllow = "exact";
// So many schemes, the fastest without compression, are tried with compressors.
constexpr std::size_t kCompressedSchemes = 3;

// How much an effect changes training, by what is known of accuracy: least first.
constexpr Effect kMildestFirst[] = {Effect::kExact, Effect::kCorrected, Effect::kLocal, Effect::kCompressed,
                                    Effect::kDelayed};

std::ptrdiff_t severity(Effect effect) {
  return std::ranges::find(kMildestFirst, effect) - std::begin(kMildestFirst);
}

std::ptrdiff_t severity(const Candidate& candidate) {
  std::ptrdiff_t sum = 0;
  // Averages through a codec are as accurate as exact ones (docs/schemes/compressors.md).
  const bool averages = find_scheme(candidate.scheme).payload == Payload::kParameter;
  for (const Effect effect : candidate.effects) {
    if (effect != Effect::kCompressed || !averages) sum += 8 * severity(effect);
  }
  const auto compressor = candidate.plan.options.find("compressor");
  // A cast changes a gradient less than what leaves most of it for later.
  if (!averages && compressor != candidate.plan.options.end() && compressor->second != "none" &&
      find_compressor(compressor->second).error_feedback)
    ++sum;
  return sum;
}

std::vector<Effect> parse_allow(const std::string& text) {
  std::vector<Effect> allowed;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find_first_of("+,", begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    const auto found =
        std::ranges::find_if(kMildestFirst, [&](Effect effect) { return name_of(effect) == word; });
    if (found == std::end(kMildestFirst)) {
      std::vector<std::string_view> names;
      std::ranges::transform(kMildestFirst, std::back_inserter(names),
                             [](Effect effect) { return name_of(effect); });
      throw InvalidInput(in_quotes(word) + " is nothing that can be allowed", "option allow of auto",
                         choice_of(word, names, "join by '+' some of"));
    }
    allowed.push_back(*found);
    begin = end + 1;
  }
  return allowed;
}

struct Limits {
  std::string allow;  // as the user wrote it
  std::vector<Effect> allowed;
  std::optional<std::int64_t> max_staleness, max_extra_bytes;
  double tolerance = 0;
  std::map<std::string, std::string> compressor;  // options of one that was asked for by name

  bool allows(Effect effect) const { return std::ranges::find(allowed, effect) != allowed.end(); }
};

Limits limits_of(const OptionValues& values) {
  Limits limits{.allow = values.text("allow"),
                .allowed = parse_allow(values.text("allow")),
                .max_staleness = values.integer("max_staleness"),
                .max_extra_bytes = values.integer("max_extra_bytes"),
                .tolerance = *values.number("tolerance"),
                .compressor = {}};
  if (!values.compression().name.empty()) {
    limits.allowed.push_back(Effect::kCompressed);
    limits.compressor = values.set();
    std::erase_if(limits.compressor,
                  [](const auto& option) { return !option.first.starts_with("compressor"); });
  }
  return limits;
}

bool admissible(const Candidate& candidate, const Limits& limits) {
  return std::ranges::all_of(candidate.effects, [&](Effect effect) { return limits.allows(effect); }) &&
         (!limits.max_staleness || candidate.result.staleness_max <= *limits.max_staleness) &&
         (!limits.max_extra_bytes || candidate.result.extra_bytes <= *limits.max_extra_bytes);
}

bool has_compressor(const SchemeInfo& scheme, std::string_view name) {
  const auto option = std::ranges::find(scheme.options, "compressor", &OptionSpec::name);
  return option != scheme.options.end() && std::ranges::find(option->choices, name) != option->choices.end();
}

// Whether some plan of the scheme may be admissible.
bool may_serve(const SchemeInfo& scheme, const Limits& limits) {
  // A scheme of delayed updates may have a correction among its options: tuning tries it.
  const bool may_correct = scheme.effect == Effect::kDelayed && limits.allows(Effect::kCorrected);
  return (limits.allows(scheme.effect) || may_correct) &&
         (limits.compressor.empty() || has_compressor(scheme, limits.compressor.at("compressor")));
}

// The options that every candidate of a scheme starts from.
std::map<std::string, std::string> fixed_options(const SchemeInfo& scheme, const Limits& limits) {
  if (scheme.payload == Payload::kParameter && limits.compressor.empty() &&
      limits.allows(Effect::kCompressed))
    return {{"compressor", std::string(kPlannersChoice)}};
  return limits.compressor;
}

// The schemes of gradients that are fastest without compression, under every compressor too.
void add_compressed(const CandidateMaker& maker, const Limits& limits, std::vector<Candidate>& candidates) {
  std::vector<std::size_t> fastest;  // one candidate for each scheme
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const SchemeInfo& scheme = find_scheme(candidates[i].scheme);
    if (scheme.payload != Payload::kGradient || scheme.chooses || !may_serve(scheme, limits)) continue;
    const auto same =
        std::ranges::find(fastest, candidates[i].scheme, [&](std::size_t j) { return candidates[j].scheme; });
    if (same == fastest.end()) {
      fastest.push_back(i);
    } else if (faster(candidates[i].result, candidates[*same].result)) {
      *same = i;
    }
  }
  std::ranges::stable_sort(fastest, faster,
                           [&](std::size_t i) -> const SimulationResult& { return candidates[i].result; });
  fastest.resize(std::min(fastest.size(), kCompressedSchemes));
  for (const std::size_t i : fastest) {
    for (const CompressorInfo& info : compressors()) {
      std::map<std::string, std::string> options = candidates[i].options;
      options["compressor"] = info.name;
      maker.add(find_scheme(candidates[i].scheme), options, candidates);
    }
  }
}

// Every scheme that may serve `limits` or `wider`, tuned.
std::vector<Candidate> candidates_of(const Workload& workload, const Cluster& cluster, const Limits& limits,
                                     const Limits& wider) {
  const CandidateMaker maker(workload, cluster);
  std::vector<Candidate> candidates;
  for (const SchemeInfo& scheme : schemes()) {
    if (scheme.name == "auto" || (scheme.name == "optimal" && !optimal_searches(workload, cluster))) continue;
    if (!may_serve(scheme, limits) && !may_serve(scheme, wider)) continue;
    const auto first = std::ssize(candidates);
    const std::map<std::string, std::string> fixed = fixed_options(scheme, limits);
    maker.tune(scheme, fixed, candidates);
    // The anchors of compressed averages may take more memory than there is.
    if (limits.max_extra_bytes && fixed != limits.compressor &&
        std::none_of(candidates.begin() + first, candidates.end(),
                     [&](const Candidate& candidate) { return admissible(candidate, limits); }))
      maker.tune(scheme, limits.compressor, candidates);
  }
  if (limits.allows(Effect::kCompressed) && limits.compressor.empty())
    add_compressed(maker, limits, candidates);
  return candidates;
}

std::string text_of(const std::vector<Effect>& effects) {
  std::string text;
  for (const Effect effect : effects) text.append(text.empty() ? "" : "+").append(name_of(effect));
  return text;
}

// What to prefer among plans that are fast enough.
auto preference(const Candidate& candidate) {
  return std::tuple(severity(candidate), candidate.result.iteration_ns(), candidate.result.staleness_max,
                    candidate.result.extra_bytes);
}

// Returns those within the limits, in order of preference.
std::vector<const Candidate*> admitted(const std::vector<Candidate>& candidates, const Limits& limits) {
  std::vector<const Candidate*> result;
  for (const Candidate& candidate : candidates) {
    if (admissible(candidate, limits)) result.push_back(&candidate);
  }
  std::ranges::stable_sort(result, {}, [](const Candidate* candidate) { return preference(*candidate); });
  return result;
}

// Returns the best of `candidates`, which are in order of preference, by the rule at the top of this file, or null of none.
const Candidate* choose(const std::vector<const Candidate*>& candidates, double tolerance) {
  if (candidates.empty()) return nullptr;
  std::vector<double> times;
  for (const Candidate* candidate : candidates) times.push_back(candidate->result.iteration_ns());
  return candidates[first_within(times, tolerance)];
}

// The best plan of any other scheme than `chosen`.
std::optional<PlanSummary> runner_up(std::vector<const Candidate*> candidates, const Candidate& chosen,
                                     double tolerance) {
  std::erase_if(candidates, [&](const Candidate* c) { return c->scheme == chosen.scheme; });
  const Candidate* second = choose(candidates, tolerance);
  if (second == nullptr) return std::nullopt;
  return summary_of(*second);
}

std::string reason(const std::vector<const Candidate*>& candidates, const Candidate& chosen,
                   const std::string& allow) {
  std::string text = std::to_string(candidates.size()) + " plans are admissible under " + allow + "; ";
  const auto fastest = std::ranges::min_element(
      candidates, faster, [](const Candidate* c) -> const SimulationResult& { return c->result; });
  if (!faster((*fastest)->result, chosen.result)) return text + "none is faster";
  char us[64];
  const char* const end =
      std::to_chars(us, us + sizeof us, nearest_us((*fastest)->result.iteration_ns())).ptr;
  return text + "it changes training less (" + text_of(chosen.effects) + ") than " + to_string(**fastest) +
         " (" + text_of((*fastest)->effects) + "), which takes " +
         std::string(us, static_cast<std::size_t>(end - us)) + " us";
}

SearchReport search_report_of(const Candidate& chosen) {
  const Bound& bound = chosen.result.lower_bound;
  return {.chosen = summary_of(chosen), .lower_bound_us = bound_us(bound.iteration_ns), .proof = bound.name};
}

RankedPlans ranked(const Workload& workload, const Cluster& cluster, const OptionValues& values,
                   std::size_t most) {
  const Limits limits = limits_of(values);
  Limits wider = limits;
  wider.allowed.push_back(Effect::kCorrected);
  const std::vector<Candidate> candidates = candidates_of(workload, cluster, limits, wider);
  std::vector<const Candidate*> left = admitted(candidates, limits);
  if (left.empty()) {
    return Infeasible{"none of " + std::to_string(candidates.size()) +
                      " plans keeps the limits; allow more than " + limits.allow +
                      ", or raise max_staleness or max_extra_bytes"};
  }
  std::vector<RankedPlan> plans;
  while (!left.empty() && plans.size() < most) {
    const Candidate& chosen = *choose(left, limits.tolerance);
    RankedPlan ranked{chosen.plan, chosen.result, chosen.effects, demands_of(chosen.plan)};
    ranked.plan.options.clear();
    ranked.plan.search_report = search_report_of(chosen);
    SearchReport& report = *ranked.plan.search_report;
    report.runner_up = runner_up(left, chosen, limits.tolerance);
    if (plans.empty()) {
      report.reason = reason(left, chosen, limits.allow);
      const Candidate* corrected = choose(admitted(candidates, wider), limits.tolerance);
      if (corrected != &chosen) report.if_corrected = summary_of(*corrected);
    } else {
      report.reason = "next best after " + plans.back().plan.search_report->chosen.scheme;
    }
    complete_plan(ranked.plan, workload, cluster, "auto", values);
    std::erase_if(left, [&](const Candidate* c) {
      return c->scheme == chosen.scheme && c->effects == ranked.effects &&
             demands_of(c->plan) == ranked.demands;
    });
    plans.push_back(std::move(ranked));
  }
  return plans;
}

void check_auto(const OptionValues& values) { parse_allow(values.text("allow")); }

PlanResult plan_auto(const Workload& workload, const Cluster& cluster, const OptionValues& values) {
  RankedPlans plans = ranked(workload, cluster, values, 1);
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&plans)) return *infeasible;
  return std::move(std::get<std::vector<RankedPlan>>(plans).front().plan);
}

}  // namespace

std::size_t first_within(std::span<const double> times, double tolerance) {
  const double most = std::ranges::min(times) * (1 + tolerance);
  const auto first = std::ranges::find_if(times, [&](double time) { return time <= most; });
  return static_cast<std::size_t>(first - times.begin());
}

RankedPlans ranked_plans(const Workload& workload, const Cluster& cluster,
                         const std::map<std::string, std::string>& options) {
  const OptionValues values = check_options("auto", options);
  check(workload);
  check(cluster);
  return ranked(workload, cluster, values, std::numeric_limits<std::size_t>::max());
}

SchemeInfo auto_scheme() {
  return {
      .name = "auto",
      .summary = "the fastest plan of all schemes within the user's limits",
      .paper = "",
      .effect = Effect::kExact,
      .options =
          {{.name = "allow",
            .type = OptionType::kText,
            .default_value = kDefaultAllow,
            .default_source = "Gradweave: nothing but the speed changes",
            .meaning = "what the plan may do to training: exact, corrected, local, compressed, delayed, "
                       "joined by '+'"},
           {.name = "max_staleness",
            .type = OptionType::kInteger,
            .unit = Unit::kIterations,
            .default_value = "",
            .default_source = "no limit",
            .minimum = 0,
            .maximum = 1e9,
            .meaning = "how late a gradient may be applied"},
           {.name = "max_extra_bytes",
            .type = OptionType::kInteger,
            .unit = Unit::kMemoryBytes,
            .default_value = "",
            .default_source = "no limit",
            .minimum = 0,
            .maximum = 0x1p53,
            .meaning = "how much memory the plan may take for buffers, snapshots and generations"},
           {.name = "tolerance",
            .type = OptionType::kNumber,
            .default_value = "0.01",
            .default_source = "Gradweave: below what a profile can tell apart",
            .minimum = 0,
            .maximum = 10,
            .meaning =
                "a plan that changes training less is preferred while it is slower by at most this share"}},
      .chooses = true,
      .check = check_auto,
      .plan = plan_auto};
}

}  // namespace gradweave
