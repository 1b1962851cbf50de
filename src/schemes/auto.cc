// The fastest plan of all schemes within the user's limits.
//
//   allow                            what the plan may do to training: every effect of an admissible plan is
//                                    allowed (effects.h), but for what a compressor does that was asked for by name
//   max_staleness, max_extra_bytes   read off the simulation and the validator
//   tolerance                        a plan that changes training less is preferred while it is slower by at
//                                    most this share
//
// Candidates: every scheme, each tuned over a small grid (candidates.h), `optimal` where it does more than
// that; with `compressed`, the schemes of gradients that are fastest without compression under each compressor
// that keeps the accuracy too, and schemes of averages under the codec that they choose: fewer bits harm less
// than rarer averages. The fastest admissible candidate sets the time to meet; of those within `tolerance` of it
// the one that changes training least is chosen; then the one with the shorter period, the faster, the one of
// less staleness, of less memory, the one listed first.
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
#include "schemes/option_table.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

// So many schemes, the fastest without compression, are tried with compressors.
constexpr std::size_t kCompressedSchemes = 3;

// How much an effect changes training, by what is known of accuracy: least first.
constexpr Effect kMildestFirst[] = {Effect::kExact, Effect::kLocal, Effect::kCorrected, Effect::kCompressed,
                                    Effect::kDelayed};

std::ptrdiff_t severity(Effect effect) {
  return std::ranges::find(kMildestFirst, effect) - std::begin(kMildestFirst);
}

std::ptrdiff_t severity(const Candidate& candidate) {
  // Averages through a codec are as accurate as exact ones (docs/schemes/compressors.md).
  const bool averages = find_scheme(candidate.scheme).payload == Payload::kParameter;
  const Compression compression = averages ? Compression{} : compression_of(candidate.options);
  const CompressorInfo* compressor = compression.name.empty() ? nullptr : &find_compressor(compression.name);
  // Rounded gradients lose nothing where averages do: under AdamW (docs/results/accuracy.md).
  const bool rounds = compressor != nullptr && compressor->keeps_accuracy;
  std::ptrdiff_t sum = 0;
  for (const Effect effect : candidate.effects) {
    if (effect != Effect::kCompressed || !(averages || rounds)) sum += 8 * severity(effect);
  }
  if (rounds) ++sum;
  // A cast changes a gradient less than what leaves most of it for later.
  if (compressor != nullptr && compressor->error_feedback) ++sum;
  return sum;
}

// What may happen to training, as it is written and as it is meant.
struct Allowed {
  std::string written;
  std::vector<Effect> effects;
};

Allowed parse_allow(const std::string& text) {
  Allowed allowed{.written = text, .effects = {}};
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
      throw InvalidInput(in_quotes(word) + " can't be allowed", "option allow of auto",
                         choice_of(word, names, "use one or more, joined by '+', of"));
    }
    allowed.effects.push_back(*found);
    begin = end + 1;
  }
  return allowed;
}

struct AutoOptions {
  Allowed allow{"exact", {Effect::kExact}};
  std::optional<std::int64_t> max_staleness, max_extra_bytes;
  double tolerance = 0.01;
  Compression compression;  // one that was asked for by name

  bool allows(Effect effect) const { return std::ranges::find(allow.effects, effect) != allow.effects.end(); }
  bool compresses() const { return !compression.name.empty(); }
};

// A compressor that was asked for admits what it does itself to what a scheme sends, but not that a schedule leaves
// gradients for later.
bool admits(const AutoOptions& limits, Effect effect, const Plan& plan) {
  return limits.allows(effect) ||
         (effect == Effect::kCompressed && limits.compresses() && !filters_gradients(plan));
}

bool admissible(const Candidate& candidate, const AutoOptions& limits) {
  return std::ranges::all_of(candidate.effects,
                             [&](Effect effect) { return admits(limits, effect, candidate.plan); }) &&
         (!limits.max_staleness || candidate.result.staleness_max <= *limits.max_staleness) &&
         (!limits.max_extra_bytes || candidate.result.extra_bytes <= *limits.max_extra_bytes);
}

bool has_compressor(const SchemeInfo& scheme, std::string_view name) {
  const auto option = std::ranges::find(scheme.options, "compressor", &OptionSpec::name);
  return option != scheme.options.end() && std::ranges::find(option->choices, name) != option->choices.end();
}

// Whether some plan of the scheme may be admissible.
bool may_serve(const SchemeInfo& scheme, const AutoOptions& limits) {
  // A scheme of delayed updates may have a correction among its options: tuning tries it.
  const bool may_correct = scheme.effect == Effect::kDelayed && limits.allows(Effect::kCorrected);
  return (limits.allows(scheme.effect) || may_correct) &&
         (!limits.compresses() || has_compressor(scheme, limits.compression.name));
}

// The options of a scheme with the compressor that was asked for.
SchemeOptions asked_for(const SchemeInfo& scheme, const AutoOptions& limits) {
  SchemeOptions options = options_of(scheme.name);
  if (limits.compresses()) set_compression(options, limits.compression);
  return options;
}

// The options that every candidate of a scheme starts from.
SchemeOptions first_options(const SchemeInfo& scheme, const AutoOptions& limits) {
  SchemeOptions options = asked_for(scheme, limits);
  if (scheme.payload == Payload::kParameter && !limits.compresses() && limits.allows(Effect::kCompressed))
    options.set("compressor", std::string(kPlannersChoice));
  return options;
}

// The schemes of gradients that are fastest without compression, under each compressor that keeps the accuracy too.
void add_compressed(const CandidateMaker& maker, const AutoOptions& limits,
                    std::vector<Candidate>& candidates) {
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
      if (!info.keeps_accuracy) continue;
      SchemeOptions options = candidates[i].options;
      options.set("compressor", std::string(info.name));
      maker.add(options, candidates);
    }
  }
}

// The scheme's plans that average gains, which cost what `maker`'s cluster says. Where the planner would compress nothing, since that
// does not know what other averages cost: under every codec.
void add_averages_of_gains(const CandidateMaker& maker, SchemeOptions options,
                           std::vector<Candidate>& candidates) {
  std::vector<Candidate> made;
  const auto none = [&] {
    std::erase_if(made, [](const Candidate& candidate) { return !averages_gains(candidate.plan); });
    return made.empty();
  };
  maker.tune(options, made);
  const OptionValue* compressor = options.find("compressor");
  if (none() && compressor != nullptr && to_string(*compressor) == kPlannersChoice) {
    for (const CompressorInfo& info : compressors()) {
      if (info.cost_of(Payload::kParameter) == nullptr) continue;
      options.set("compressor", std::string(info.name));
      maker.tune(options, made);
    }
    none();
  }
  std::ranges::move(made, std::back_inserter(candidates));
}

// Every scheme that may serve `limits` or `wider`, tuned. `staged`: as ranked_plans().
std::vector<Candidate> candidates_of(const Workload& workload, const Cluster& cluster, const Cluster* staged,
                                     const SimulationOptions& overheads, const AutoOptions& limits,
                                     const AutoOptions& wider) {
  const CandidateMaker maker(workload, cluster, overheads);
  std::vector<Candidate> candidates;
  for (const SchemeInfo& scheme : schemes()) {
    if (scheme.name == kAuto || (scheme.name == "optimal" && !optimal_searches(workload, cluster))) continue;
    if (!may_serve(scheme, limits) && !may_serve(scheme, wider)) continue;
    const auto first = std::ssize(candidates);
    SchemeOptions options = first_options(scheme, limits);
    if (staged != nullptr && scheme.payload == Payload::kParameter) {
      add_averages_of_gains(CandidateMaker(workload, *staged, overheads), options, candidates);
      if (limits.compresses()) continue;
      options = asked_for(scheme, limits);
    }
    maker.tune(options, candidates);
    // The anchors of compressed averages may take more memory than there is.
    if (limits.max_extra_bytes && options != asked_for(scheme, limits) &&
        std::none_of(candidates.begin() + first, candidates.end(),
                     [&](const Candidate& candidate) { return admissible(candidate, limits); }))
      maker.tune(asked_for(scheme, limits), candidates);
  }
  if (candidates.empty() && maker.refusal()) throw *maker.refusal();
  if (limits.allows(Effect::kCompressed) && !limits.compresses()) add_compressed(maker, limits, candidates);
  return candidates;
}

std::string text_of(const std::vector<Effect>& effects) {
  std::string text;
  for (const Effect effect : effects) text.append(text.empty() ? "" : "+").append(name_of(effect));
  return text;
}

// What to prefer among plans that are fast enough. Rare averages cost accuracy, fewer bits don't
// (docs/schemes/compressors.md).
auto preference(const Candidate& candidate) {
  return std::tuple(severity(candidate), candidate.plan.period.size(), candidate.result.iteration_ns(),
                    candidate.result.staleness_max, candidate.result.extra_bytes);
}

// Returns those within the limits, in order of preference.
std::vector<const Candidate*> admitted(const std::vector<Candidate>& candidates, const AutoOptions& limits) {
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
                   const AutoOptions& limits) {
  std::string text = std::to_string(candidates.size()) + " plans are allowed under " + limits.allow.written;
  if (limits.compresses()) text += " with compressor " + limits.compression.name;
  text += "; ";
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

RankedPlans ranked(const Workload& workload, const Cluster& cluster, const Cluster* staged,
                   const SimulationOptions& overheads, const AutoOptions& limits, std::size_t most) {
  AutoOptions wider = limits;
  wider.allow.effects.push_back(Effect::kCorrected);
  const std::vector<Candidate> candidates =
      candidates_of(workload, cluster, staged, overheads, limits, wider);
  std::vector<const Candidate*> left = admitted(candidates, limits);
  if (left.empty()) {
    return Infeasible{"none of " + std::to_string(candidates.size()) +
                      " plans is within the limits; allow more than " + limits.allow.written +
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
      report.reason = reason(left, chosen, limits);
      const Candidate* corrected = choose(admitted(candidates, wider), limits.tolerance);
      if (corrected != &chosen) report.if_corrected = summary_of(*corrected);
    } else {
      report.reason = "next best after " + plans.back().plan.search_report->chosen.scheme;
    }
    std::erase_if(left, [&](const Candidate* c) {
      return c->scheme == chosen.scheme && c->effects == ranked.effects &&
             demands_of(c->plan) == ranked.demands;
    });
    plans.push_back(std::move(ranked));
  }
  return plans;
}

PlanResult plan_auto(const Workload& workload, const Cluster& cluster, const AutoOptions& options) {
  RankedPlans plans = ranked(workload, cluster, nullptr, {}, options, 1);
  if (const Infeasible* infeasible = std::get_if<Infeasible>(&plans)) return *infeasible;
  return std::move(std::get<std::vector<RankedPlan>>(plans).front().plan);
}

std::vector<Option<AutoOptions>> table_of_auto() {
  return {
      {{.name = "allow",
        .type = OptionType::kText,
        .default_value = AutoOptions{}.allow.written,
        .default_source = "Gradweave: nothing but the speed changes",
        .meaning = "what the plan may do to training: exact, corrected, local, compressed, delayed, "
                   "joined by '+'"},
       [](AutoOptions& options, const OptionValue& value) {
         options.allow = parse_allow(std::get<std::string>(value));
       }},
      option(&AutoOptions::max_staleness, {.name = "max_staleness",
                                           .unit = Unit::kIterations,
                                           .default_source = "no limit",
                                           .minimum = 0,
                                           .maximum = 1e9,
                                           .meaning = "how late a gradient may be applied"}),
      option(&AutoOptions::max_extra_bytes,
             {.name = "max_extra_bytes",
              .unit = Unit::kMemoryBytes,
              .default_source = "no limit",
              .minimum = 0,
              .maximum = 0x1p53,
              .meaning = "how much memory the plan may take for buffers, snapshots and generations"}),
      option(&AutoOptions::tolerance,
             {.name = "tolerance",
              .default_source = "Gradweave: less than the error of a profile",
              .minimum = 0,
              .maximum = 10,
              .meaning = "a plan that changes training less is preferred while it is slower by at most this "
                         "share"})};
}

}  // namespace

std::vector<Effect> allowed_effects(const SchemeOptions& options) {
  return struct_of(table_of_auto(), options).allow.effects;
}

std::size_t first_within(std::span<const double> times, double tolerance) {
  const double most = std::ranges::min(times) * (1 + tolerance);
  const auto first = std::ranges::find_if(times, [&](double time) { return time <= most; });
  return static_cast<std::size_t>(first - times.begin());
}

RankedPlans ranked_plans(const Workload& workload, const Cluster& cluster, const SchemeOptions& options,
                         const Cluster* staged, const SimulationOptions& overheads) {
  check(workload);
  check(cluster);
  if (staged != nullptr) check(*staged);
  RankedPlans plans = ranked(workload, cluster, staged, overheads, struct_of(table_of_auto(), options),
                             std::numeric_limits<std::size_t>::max());
  if (auto* found = std::get_if<std::vector<RankedPlan>>(&plans)) {
    for (RankedPlan& each : *found) {
      const bool gains = staged != nullptr && averages_gains(each.plan);
      complete_plan(each.plan, workload, gains ? *staged : cluster, options);
    }
  }
  return plans;
}

SchemeInfo auto_scheme() {
  return scheme_row<AutoOptions>({.name = kAuto,
                                  .summary = "the fastest plan of all schemes within the user's limits",
                                  .paper = "",
                                  .effect = Effect::kExact,
                                  .chooses = true},
                                 table_of_auto(), plan_auto);
}

}  // namespace gradweave
