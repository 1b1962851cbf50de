// The fastest plan of all schemes within the user's limits.
//
//   allow                            what the plan may do to training: every effect of an admissible plan is
//                                    allowed (schemes.h, effects_of())
//   max_staleness, max_extra_bytes   read off the simulation and the validator
//   tolerance                        a plan that changes training less is preferred while it is slower by at
//                                    most this share
//
// Candidates: every scheme, each tuned over a small grid (candidates.h), `optimal` where it does more than
// that; with `compressed`, the schemes that are fastest without compression under every compressor too. The
// fastest admissible candidate sets the time to meet; of those within `tolerance` of it the one that changes
// training least is chosen; then the faster, the one of less staleness, of less memory, the one listed first.
//
// Default of `allow`: exact+corrected. Averages that arrive late and are corrected kept the accuracy of
// synchronous training within 0.3 points on shuffled shards with SGD and momentum; plain delayed updates
// diverged at the same learning rate: docs/schemes/auto.md has the figures. So `delayed` is never chosen
// unless asked for.
//
// What was found stands in Plan::options: chosen, chosen_options, reason, runner_up, lower_bound (the one that
// binds), gap.
// Complexity: some 100 plans and simulations; no clock, so the choice is the same everywhere.
#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "gradweave/compression.h"
#include "gradweave/error.h"
#include "model/text.h"
#include "schemes/candidates.h"
#include "schemes/optimal.h"
#include "schemes/registry.h"

namespace gradweave {
namespace {

constexpr std::string_view kDefaultAllow = "exact+corrected";
// So many schemes, the fastest without compression, are tried with compressors.
constexpr std::size_t kCompressedSchemes = 3;

// How much an effect changes training, by what is known of accuracy: least first.
constexpr Consistency kMildestFirst[] = {Consistency::kExact, Consistency::kCorrected, Consistency::kLocal,
                                         Consistency::kCompressed, Consistency::kDelayed};

std::ptrdiff_t severity(Consistency effect) {
  return std::ranges::find(kMildestFirst, effect) - std::begin(kMildestFirst);
}

std::ptrdiff_t severity(const Candidate& candidate) {
  std::ptrdiff_t sum = 0;
  for (const Consistency effect : candidate.effects) sum += 8 * severity(effect);
  const auto compressor = candidate.options.find("compressor");
  // A cast changes a gradient less than what leaves most of it for later.
  if (compressor != candidate.options.end() && find_compressor(compressor->second).error_feedback) ++sum;
  return sum;
}

std::vector<Consistency> parse_allow(const std::string& text) {
  std::vector<Consistency> allowed;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find_first_of("+,", begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    const auto found =
        std::ranges::find_if(kMildestFirst, [&](Consistency effect) { return name_of(effect) == word; });
    if (found == std::end(kMildestFirst)) {
      throw InvalidInput(in_quotes(word) + " is nothing that can be allowed", "option allow of auto",
                         "join some of exact, corrected, local, compressed, delayed by '+'");
    }
    allowed.push_back(*found);
    begin = end + 1;
  }
  return allowed;
}

struct Limits {
  std::vector<Consistency> allowed;
  std::optional<std::int64_t> max_staleness, max_extra_bytes;
  double tolerance = 0;

  bool allow(Consistency effect) const { return std::ranges::find(allowed, effect) != allowed.end(); }
};

bool admissible(const Candidate& candidate, const Limits& limits) {
  return std::ranges::all_of(candidate.effects, [&](Consistency effect) { return limits.allow(effect); }) &&
         (!limits.max_staleness || candidate.result.staleness_max <= *limits.max_staleness) &&
         (!limits.max_extra_bytes || candidate.result.extra_bytes <= *limits.max_extra_bytes);
}

// Every scheme whose plans may be admissible, tuned. `compressor`: options that the user has fixed.
std::vector<Candidate> candidates_of(const Workload& workload, const Cluster& cluster, const Limits& limits,
                                     const std::map<std::string, std::string>& compressor) {
  const CandidateMaker maker(workload, cluster);
  std::vector<Candidate> candidates;
  for (const SchemeInfo& scheme : schemes()) {
    if (scheme.name == "auto" || (scheme.name == "optimal" && !optimal_searches(workload, cluster))) continue;
    // A scheme of delayed updates may have a correction among its options: tuning tries it.
    const bool may_correct =
        scheme.consistency == Consistency::kDelayed && limits.allow(Consistency::kCorrected);
    if (!compressor.empty() && scheme.payload != Payload::kGradient) continue;
    if (limits.allow(scheme.consistency) || may_correct) maker.tune(scheme, compressor, candidates);
  }
  if (!limits.allow(Consistency::kCompressed) || !compressor.empty()) return candidates;
  std::vector<std::size_t> fastest;  // one candidate for each scheme of gradients
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const SchemeInfo& scheme = find_scheme(candidates[i].scheme);
    if (scheme.payload != Payload::kGradient || scheme.chooses) continue;
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
  return candidates;
}

std::string text_of(const std::vector<Consistency>& effects) {
  std::string text;
  for (const Consistency effect : effects) text.append(text.empty() ? "" : "+").append(name_of(effect));
  return text;
}

// What to prefer among plans that are fast enough.
auto preference(const Candidate& candidate) {
  return std::tuple(severity(candidate), candidate.result.iteration_ns(), candidate.result.staleness_max,
                    candidate.result.extra_bytes);
}

// Returns the best of `candidates` by the rule at the top of this file; they are admissible and at least one.
std::size_t choose(const std::vector<const Candidate*>& candidates, double tolerance) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const Candidate* candidate : candidates) fastest = std::min(fastest, candidate->result.iteration_ns());
  std::size_t best = candidates.size();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i]->result.iteration_ns() > fastest * (1 + tolerance)) continue;
    if (best == candidates.size() || preference(*candidates[i]) < preference(*candidates[best])) best = i;
  }
  return best;
}

// The best plan of any other scheme.
std::string runner_up(const std::vector<const Candidate*>& candidates, const Candidate& chosen,
                      double tolerance) {
  std::vector<const Candidate*> others;
  std::ranges::copy_if(candidates, std::back_inserter(others),
                       [&](const Candidate* c) { return c->scheme != chosen.scheme; });
  if (others.empty()) return "none";
  const Candidate& second = *others[choose(others, tolerance)];
  const double slower = second.result.iteration_ns() / std::max(1.0, chosen.result.iteration_ns()) - 1;
  return to_string(second) + ": " + decimal(second.result.iteration_ns() / 1000) + " us, " +
         decimal(100 * slower) + " % slower, " + text_of(second.effects);
}

std::string reason(const std::vector<const Candidate*>& candidates, const Candidate& chosen,
                   const std::string& allow) {
  std::string text = std::to_string(candidates.size()) + " plans are admissible under " + allow + "; ";
  const auto fastest = std::ranges::min_element(
      candidates, faster, [](const Candidate* c) -> const SimulationResult& { return c->result; });
  if (!faster((*fastest)->result, chosen.result)) return text + "none is faster";
  return text + "it changes training less (" + text_of(chosen.effects) + ") than " + to_string(**fastest) +
         " (" + text_of((*fastest)->effects) + "), which takes " +
         decimal((*fastest)->result.iteration_ns() / 1000) + " us";
}

PlanResult plan_auto(const Workload& workload, const Cluster& cluster, const OptionValues& values) {
  const std::string allow = values.text("allow");
  Limits limits{parse_allow(allow), values.integer("max_staleness"), values.integer("max_extra_bytes"),
                *values.number("tolerance")};
  std::map<std::string, std::string> compressor;
  if (!values.compression().name.empty()) {  // asked for by name
    limits.allowed.push_back(Consistency::kCompressed);
    compressor = values.set();
    std::erase_if(compressor, [](const auto& option) { return !option.first.starts_with("compressor"); });
  }
  const std::vector<Candidate> candidates = candidates_of(workload, cluster, limits, compressor);
  std::vector<const Candidate*> admitted;
  for (const Candidate& candidate : candidates) {
    if (admissible(candidate, limits)) admitted.push_back(&candidate);
  }
  if (admitted.empty()) {
    return Starves{"none of " + std::to_string(candidates.size()) +
                   " plans keeps the limits; allow more than " + allow +
                   ", or raise max_staleness or max_extra_bytes"};
  }
  const Candidate& chosen = *admitted[choose(admitted, limits.tolerance)];
  Plan plan = chosen.plan;
  const double bound = chosen.result.lower_bound.iteration_ns;
  plan.options = {{"chosen", std::string(chosen.scheme)},
                  {"reason", reason(admitted, chosen, allow)},
                  {"runner_up", runner_up(admitted, chosen, limits.tolerance)},
                  {"gap", gap_to(bound, chosen.result.iteration_ns())},
                  {"lower_bound", chosen.result.lower_bound.name}};
  std::string options;
  for (const auto& [name, value] : chosen.plan.options)
    options.append(options.empty() ? "" : ",").append(name).append("=").append(value);
  if (!options.empty()) plan.options["chosen_options"] = options;
  return plan;
}

}  // namespace

SchemeInfo auto_scheme() {
  return {
      .name = "auto",
      .summary = "the fastest plan of all schemes within the user's limits",
      .paper = "",
      .consistency = Consistency::kExact,
      .options =
          {{.name = "allow",
            .type = OptionType::kText,
            .unit = "",
            .default_value = kDefaultAllow,
            .default_source = "Gradweave: what kept accuracy on shuffled shards, docs/schemes/auto.md",
            .meaning = "what the plan may do to training: exact, corrected, local, compressed, delayed, "
                       "joined by '+'"},
           {.name = "max_staleness",
            .type = OptionType::kInteger,
            .unit = "iterations",
            .default_value = "",
            .default_source = "no limit",
            .minimum = 0,
            .maximum = 1e9,
            .meaning = "how late a gradient may be applied"},
           {.name = "max_extra_bytes",
            .type = OptionType::kInteger,
            .unit = "bytes of memory",
            .default_value = "",
            .default_source = "no limit",
            .minimum = 0,
            .maximum = 0x1p53,
            .meaning = "how much memory the plan may take for buffers, snapshots and generations"},
           {.name = "tolerance",
            .type = OptionType::kNumber,
            .unit = "",
            .default_value = "0.01",
            .default_source = "Gradweave: below what a profile can tell apart",
            .minimum = 0,
            .maximum = 10,
            .meaning =
                "a plan that changes training less is preferred while it is slower by at most this share"}},
      .chooses = true,
      .plan = plan_auto};
}

}  // namespace gradweave
