#include "schemes/compressed.h"

#include <algorithm>
#include <string>

#include "gradweave/compression.h"
#include "gradweave/error.h"

namespace gradweave {

std::vector<OptionSpec> compressor_options() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> names = {"none"};
    for (const CompressorInfo& info : compressors()) names.push_back(info.name);
    return names;
  }();
  return {{.name = "compressor",
           .type = OptionType::kText,
           .unit = "",
           .default_value = "none",
           .default_source = "the gradient as it is",
           .choices = names,
           .meaning = "what gradients go through on their way; the plan is decided on the compressed cost"},
          {.name = "compressor_density",
           .type = OptionType::kNumber,
           .unit = "",
           .default_value = "",
           .default_source = "dgc 0.001 (its paper); random_k, top_k, ok_top_k 0.01",
           .minimum = 1e-9,
           .maximum = 1,
           .meaning = "share of the elements that a sparsifying compressor sends"},
          {.name = "compressor_rank",
           .type = OptionType::kInteger,
           .unit = "",
           .default_value = "",
           .default_source = "power_sgd 4 (its paper: 1 to 4)",
           .minimum = 1,
           .maximum = 1024,
           .meaning = "rank of power_sgd's factors"}};
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

Compression OptionValues::compression() const {
  Compression compression;
  const auto has = [&](std::string_view name) {
    for (const OptionSpec& spec : specs_) {
      if (spec.name == name) return true;
    }
    return false;
  };
  if (!has("compressor")) return compression;
  const std::string name = text("compressor");
  if (name != "none") compression.name = name;
  for (const std::string_view parameter : {"density", "rank"}) {
    const std::string option = "compressor_" + std::string(parameter);
    const auto set = set_.find(option);
    if (set == set_.end()) continue;
    const CompressorInfo* info = compression.name.empty() ? nullptr : &find_compressor(compression.name);
    const bool known =
        info != nullptr &&
        std::ranges::find(info->parameters, parameter, &CompressorParameter::name) != info->parameters.end();
    if (!known) {
      throw InvalidInput("compressor '" + name + "' has no " + std::string(parameter),
                         "option " + option + " of " + scheme_,
                         "leave it out, or choose a compressor that has one");
    }
    compression.parameters[std::string(parameter)] =
        parameter == "rank" ? static_cast<double>(*integer(option)) : *number(option);
  }
  return compression;
}

}  // namespace gradweave
