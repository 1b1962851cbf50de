#include "schemes/compressed.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "gradweave/compression.h"
#include "gradweave/error.h"
#include "gradweave/simulate.h"

namespace gradweave {

namespace {

// Slower by this share is below what a profile can tell apart, and more bits are worth it.
constexpr double kTolerance = 0.01;

// The option for a parameter of the compressors that serve `payload`: range and meaning of the first that has it,
// the defaults of all.
OptionSpec parameter_option(std::string_view option, std::string_view parameter, OptionType type,
                            Payload payload, std::string& defaults) {
  OptionSpec spec{.name = option, .type = type};
  for (const CompressorInfo& info : compressors()) {
    if (info.cost_of(payload) == nullptr) continue;
    const auto found = std::ranges::find(info.parameters, parameter, &CompressorParameter::name);
    if (found == info.parameters.end()) continue;
    spec.minimum = found->minimum;
    spec.maximum = found->maximum;
    spec.meaning = found->meaning;
    char text[32];
    char* const end = std::to_chars(text, text + sizeof text, found->default_value).ptr;
    defaults.append(defaults.empty() ? "" : ", ").append(info.name).append(" ").append(text, end);
  }
  spec.default_source = defaults;
  return spec;
}

std::vector<std::string_view> names_for(Payload payload) {
  std::vector<std::string_view> names = {"none"};
  for (const CompressorInfo& info : compressors()) {
    if (info.cost_of(payload) != nullptr) names.push_back(info.name);
  }
  return names;
}

std::optional<Outer> outer_of(const OptionValues& values) {
  const Outer outer{.momentum = *values.number("outer_momentum"),
                    .learning_rate = *values.number("outer_learning_rate")};
  if (outer == Outer{}) return std::nullopt;  // the anchor moves by the mean anyway
  return outer;
}

}  // namespace

std::vector<OptionSpec> compressor_options() {
  // The specifications hold views of these.
  static std::string densities, ranks, momenta, clips, warm_ups;
  static const std::vector<OptionSpec> options = [] {
    return std::vector<OptionSpec>{
        {.name = "compressor",
         .type = OptionType::kText,
         .default_value = "none",
         .default_source = "the gradient as it is",
         .choices = names_for(Payload::kGradient),
         .meaning = "what gradients go through on their way; the plan is decided on the compressed cost"},
        parameter_option("compressor_density", "density", OptionType::kNumber, Payload::kGradient, densities),
        parameter_option("compressor_rank", "rank", OptionType::kInteger, Payload::kGradient, ranks),
        parameter_option("compressor_momentum", "momentum", OptionType::kNumber, Payload::kGradient, momenta),
        parameter_option("compressor_clip", "clip", OptionType::kNumber, Payload::kGradient, clips),
        parameter_option("compressor_warm_up", "warm_up", OptionType::kInteger, Payload::kGradient,
                         warm_ups)};
  }();
  return options;
}

std::vector<OptionSpec> average_options() {
  static std::string densities;
  static const std::vector<OptionSpec> options = [] {
    std::vector<std::string_view> names = names_for(Payload::kParameter);
    names.push_back(kPlannersChoice);
    return std::vector<OptionSpec>{
        {.name = "compressor",
         .type = OptionType::kText,
         .default_value = "none",
         .default_source = "the parameters as they are",
         .choices = names,
         .meaning =
             "what workers have gained since the last average goes through it; auto: as many bits as the "
             "shortest period allows"},
        parameter_option("compressor_density", "density", OptionType::kNumber, Payload::kParameter,
                         densities),
        {.name = "outer_momentum",
         .type = OptionType::kNumber,
         .default_value = "0",
         .default_source = "the plain mean; DiLoCo has 0.9",
         .minimum = 0,
         .maximum = 0.999,
         .meaning = "Nesterov momentum of what the averages bring"},
        {.name = "outer_learning_rate",
         .type = OptionType::kNumber,
         .default_value = "1",
         .default_source = "the plain mean; DiLoCo has 0.7",
         .minimum = 1e-6,
         .maximum = 100,
         .meaning = "multiplies what the averages bring"}};
  }();
  return options;
}

std::vector<Compression> average_codecs(const OptionValues& values) {
  if (values.text("compressor") != kPlannersChoice) return {values.compression()};
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

void set_averages(Plan& plan, const Compression& codec, const OptionValues& values) {
  if (values.text("compressor") == kPlannersChoice)
    plan.options["compressor"] = codec.name.empty() ? "none" : codec.name;
  const bool averages =
      std::ranges::any_of(plan.period, [](const Iteration& iteration) { return !iteration.ops.empty(); });
  if (averages) plan.outer = outer_of(values);
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

PlanResult fastest_over_codecs(const Workload& workload, const Cluster& cluster, const OptionValues& values,
                               const std::function<PlanResult(const Compression&)>& plan_under) {
  const std::vector<Compression> codecs = average_codecs(values);
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
                             "use fp16, bf16, int8 or int4, or a scheme of all-reduces");
        }
        op.compression = compression;
      }
    }
  }
}

}  // namespace gradweave
