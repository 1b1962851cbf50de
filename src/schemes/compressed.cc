#include "schemes/compressed.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/quoted.h"
#include "gradweave/error.h"
#include "gradweave/simulate.h"

namespace gradweave {

namespace {

// Slower by this share is below what a profile can tell apart, and more bits are worth it.
constexpr double kTolerance = 0.01;

constexpr std::string_view kCompressor = "compressor", kParameterPrefix = "compressor_";

void append(std::string& list, std::string_view separator, std::string_view item) {
  list.append(list.empty() ? "" : separator).append(item);
}

// The option for a parameter of some of the compressors that serve `payload`: the range that holds all of theirs, the
// defaults of each, the meaning for each where they differ.
OptionSpec parameter_option(std::string_view parameter, Payload payload) {
  OptionSpec spec{.name = std::string(kParameterPrefix).append(parameter),
                  .minimum = std::numeric_limits<double>::infinity(),
                  .maximum = -std::numeric_limits<double>::infinity()};
  std::string meanings;
  for (const CompressorInfo& info : compressors()) {
    if (info.cost_of(payload) == nullptr) continue;
    const CompressorParameter* found = info.parameter(parameter);
    if (found == nullptr) continue;
    if (!found->integer) spec.type = OptionType::kNumber;
    spec.minimum = std::min(spec.minimum, found->minimum);
    spec.maximum = std::max(spec.maximum, found->maximum);
    append(spec.default_source, ", ",
           std::string(info.name).append(" ").append(to_string(OptionValue(found->default_value))));
    append(meanings, "; ", std::string(info.name).append(": ").append(found->meaning));
    if (spec.meaning.empty()) spec.meaning = found->meaning;
    if (spec.meaning != found->meaning) spec.meaning = meanings;
  }
  return spec;
}

std::string has_no(const std::string& compressor, const std::string& parameter) {
  return "compressor '" + compressor + "' has no " + parameter;
}

std::string place_of(const SchemeOptions& options, const std::string& option) {
  return "option " + option + " of " + std::string(options.scheme());
}

// `compressor`, with `own` as further choices, and an option for each parameter.
std::vector<OptionSpec> options_for(Payload payload, std::string_view unchanged, std::string_view meaning,
                                    const std::vector<std::string_view>& own) {
  OptionSpec compressor{.name = std::string(kCompressor),
                        .type = OptionType::kText,
                        .default_value = "none",
                        .default_source = std::string(unchanged),
                        .choices = {"none"},
                        .meaning = std::string(meaning)};
  std::vector<std::string_view> parameters;
  for (const CompressorInfo& info : compressors()) {
    if (info.cost_of(payload) == nullptr) continue;
    compressor.choices.push_back(info.name);
    for (const CompressorParameter& parameter : info.parameters) {
      if (std::ranges::find(parameters, parameter.name) == parameters.end())
        parameters.push_back(parameter.name);
    }
  }
  std::ranges::copy(own, std::back_inserter(compressor.choices));
  std::vector<OptionSpec> options = {compressor};
  for (const std::string_view parameter : parameters) options.push_back(parameter_option(parameter, payload));
  return options;
}

// The optimizer's own rows are bound to its members as a scheme's are.
struct OuterRow {
  OptionSpec spec;
  double Outer::*member;
};

const std::vector<OuterRow>& outer_rows() {
  static const std::vector<OuterRow> rows = [] {
    std::vector<OuterRow> made = {{{.name = "outer_momentum",
                                    .default_source = "the plain mean; DiLoCo has 0.9",
                                    .minimum = 0,
                                    .maximum = 0.999,
                                    .meaning = "Nesterov momentum on the changes that averages bring"},
                                   &Outer::momentum},
                                  {{.name = "outer_learning_rate",
                                    .default_source = "the plain mean; DiLoCo has 0.7",
                                    .minimum = 1e-6,
                                    .maximum = 100,
                                    .meaning = "multiplies the changes that averages bring"},
                                   &Outer::learning_rate}};
    for (OuterRow& row : made) {
      row.spec.type = OptionType::kNumber;
      row.spec.default_value = to_string(OptionValue(Outer{}.*row.member));
    }
    return made;
  }();
  return rows;
}

}  // namespace

const std::vector<OptionSpec>& compressor_options() {
  static const std::vector<OptionSpec> options =
      options_for(Payload::kGradient, "no compression",
                  "how gradients are compressed; the plan is made for the compressed cost", {});
  return options;
}

const std::vector<OptionSpec>& average_options() {
  static const std::vector<OptionSpec> options = [] {
    std::vector<OptionSpec> made = options_for(
        Payload::kParameter, "no compression",
        "how averages are compressed, as changes since the last one; auto: as many bits as the shortest "
        "period allows",
        {kPlannersChoice});
    for (const OuterRow& row : outer_rows()) made.push_back(row.spec);
    return made;
  }();
  return options;
}

Compression compression_of(const SchemeOptions& options) {
  const OptionValue* chosen = options.find(kCompressor);
  const std::string name = chosen == nullptr ? "none" : to_string(*chosen);
  Compression compression;
  const CompressorInfo* info = nullptr;
  if (name != "none" && name != kPlannersChoice) {
    info = &find_compressor(name);
    compression.name = name;
  }
  for (const auto& [option, text] : options.written()) {
    if (!option.starts_with(kParameterPrefix)) continue;
    const std::string parameter = option.substr(kParameterPrefix.size());
    const CompressorParameter* known = info == nullptr ? nullptr : info->parameter(parameter);
    if (known == nullptr) {
      throw InvalidInput(has_no(name, parameter), place_of(options, option),
                         "leave it out, or choose a compressor that has one");
    }
    const double value = number_of(*options.find(option));
    if (!(value >= known->minimum && value <= known->maximum)) {
      throw InvalidInput(in_quotes(text) + " is out of range", place_of(options, option),
                         "give a value from " + to_string(OptionValue(known->minimum)) + " to " +
                             to_string(OptionValue(known->maximum)));
    }
    compression.parameters[parameter] = value;
  }
  return compression;
}

AverageOptions averages_of(const SchemeOptions& options) {
  const OptionValue* chosen = options.find(kCompressor);
  AverageOptions averages{.planners_choice = chosen != nullptr && to_string(*chosen) == kPlannersChoice,
                          .compression = compression_of(options),
                          .outer = std::nullopt};
  Outer outer;
  for (const OuterRow& row : outer_rows()) {
    if (const OptionValue* value = options.find(row.spec.name)) outer.*row.member = std::get<double>(*value);
  }
  if (outer != Outer{}) averages.outer = outer;  // else the anchor moves by the mean anyway
  return averages;
}

void set_compression(SchemeOptions& options, const Compression& compression) {
  options.set(kCompressor, compression.name);
  for (const auto& [parameter, value] : compression.parameters) {
    const std::string option = std::string(kParameterPrefix).append(parameter);
    const OptionSpec* spec = options.spec(option);
    if (spec != nullptr && spec->type == OptionType::kInteger)
      options.set(option, static_cast<std::int64_t>(value));
    else
      options.set(option, value);
  }
}

bool is_compressor_option(std::string_view option) {
  return option == kCompressor || option.starts_with(kParameterPrefix);
}

std::vector<Compression> average_codecs(const AverageOptions& averages) {
  if (!averages.planners_choice) return {averages.compression};
  constexpr CompressedMessage kMessage{.numel = 1 << 20, .workers = 2};
  std::vector<Compression> codecs;
  for (const CompressorInfo& info : compressors()) {
    if (info.average_cost != nullptr && info.parameters.empty())
      codecs.push_back({.name = std::string(info.name), .parameters = {}});
  }
  std::ranges::stable_sort(codecs, std::ranges::greater{}, [&](const Compression& codec) {
    return wire_cost(codec, Payload::kParameter, kMessage).encoded_bytes;
  });
  codecs.insert(codecs.begin(), Compression{});
  return codecs;
}

void set_averages(Plan& plan, const Compression& codec, const AverageOptions& averages) {
  if (averages.planners_choice)
    plan.options[std::string(kCompressor)] = codec.name.empty() ? "none" : codec.name;
  if (std::ranges::any_of(plan.period, [](const Iteration& iteration) { return !iteration.ops.empty(); }))
    plan.outer = averages.outer;
  for (Iteration& iteration : plan.period) {
    for (Op& op : iteration.ops) {
      if (codec.name.empty()) break;
      op.collective = Collective::kCompressed;
      op.compression = codec;
    }
    for (Apply& apply : iteration.applies) {
      if (apply.source == Source::kAveragedParameter && (plan.outer || !codec.name.empty()))
        apply.mode = Mode::kCorrect;
    }
  }
}

PlanResult fastest_over_codecs(const Workload& workload, const Cluster& cluster,
                               const AverageOptions& averages,
                               const std::function<PlanResult(const Compression&)>& plan_under) {
  const std::vector<Compression> codecs = average_codecs(averages);
  if (codecs.size() == 1) return plan_under(codecs.front());
  const SimulationOptions options{.plan_facts = false};
  std::vector<std::pair<double, Plan>> plans;
  double least = std::numeric_limits<double>::infinity();
  for (const Compression& codec : codecs) {
    PlanResult planned = plan_under(codec);
    Plan* plan = std::get_if<Plan>(&planned);
    if (plan == nullptr) return planned;  // what is infeasible is so under every codec
    const double time = simulate(*plan, workload, cluster, options).iteration_ns();
    least = std::min(least, time);
    plans.emplace_back(time, std::move(*plan));
  }
  const auto near = [&](const auto& plan) { return plan.first <= least * (1 + kTolerance); };
  return std::move(std::ranges::find_if(plans, near)->second);
}

void compress_gradients(Plan& plan, const Compression& compression) {
  if (compression.name.empty()) return;
  const bool halves = find_compressor(compression.name).halves;
  for (std::vector<Iteration>* iterations : {&plan.prologue, &plan.period}) {
    for (Iteration& iteration : *iterations) {
      for (Op& op : iteration.ops) {
        if (op.payload != Payload::kGradient) continue;
        if (op.collective == Collective::kAllReduce) {
          op.collective = Collective::kCompressed;
        } else if (op.collective != Collective::kCompressed && !halves) {
          throw InvalidInput("'" + compression.name + "' can't be split into reduce-scatter and all-gather",
                             "option compressor of " + plan.scheme,
                             "use fp16, bf16, int8, int4 or int2, or a scheme of all-reduces");
        }
        op.compression = compression;
      }
    }
  }
}

}  // namespace gradweave
