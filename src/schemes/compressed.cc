#include "schemes/compressed.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "gradweave/compression.h"
#include "gradweave/error.h"

namespace gradweave {

namespace {

// The option for a parameter of compressors: range and meaning of the first that has it, the defaults of all.
OptionSpec parameter_option(std::string_view option, std::string_view parameter, OptionType type,
                            std::string& defaults) {
  OptionSpec spec{.name = option, .type = type};
  for (const CompressorInfo& info : compressors()) {
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

}  // namespace

std::vector<OptionSpec> compressor_options() {
  // The specifications hold views of these.
  static std::string densities, ranks;
  static const std::vector<OptionSpec> options = [] {
    std::vector<std::string_view> names = {"none"};
    for (const CompressorInfo& info : compressors()) names.push_back(info.name);
    return std::vector<OptionSpec>{
        {.name = "compressor",
         .type = OptionType::kText,
         .default_value = "none",
         .default_source = "the gradient as it is",
         .choices = names,
         .meaning = "what gradients go through on their way; the plan is decided on the compressed cost"},
        parameter_option("compressor_density", "density", OptionType::kNumber, densities),
        parameter_option("compressor_rank", "rank", OptionType::kInteger, ranks)};
  }();
  return options;
}

void compress_gradients(Plan& plan, const Compression& compression) {
  if (compression.name.empty()) return;
  const CompressorInfo& info = find_compressor(compression.name);
  const bool cast = info.summable && !info.error_feedback;
  for (std::vector<Iteration>* iterations : {&plan.prologue, &plan.period}) {
    for (Iteration& iteration : *iterations) {
      for (Op& op : iteration.ops) {
        if (op.payload != Payload::kGradient) continue;
        if (op.collective == Collective::kAllReduce) {
          op.collective = Collective::kCompressed;
        } else if (op.collective != Collective::kCompressed && !cast) {
          throw InvalidInput("'" + compression.name + "' can't be split into reduce-scatter and all-gather",
                             "option compressor of " + plan.scheme,
                             "use fp16 or bf16, or a scheme of all-reduces");
        }
        op.compression = compression;
      }
    }
  }
}

}  // namespace gradweave
