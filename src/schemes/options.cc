#include "gradweave/options.h"

#include <algorithm>
#include <cassert>
#include <charconv>

#include "base/names.h"
#include "base/quantity.h"
#include "base/quoted.h"
#include "gradweave/error.h"
#include "schemes/compressed.h"

namespace gradweave {
namespace {

std::string plain(double number) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

template <typename Number>
std::optional<Number> parse(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// What a value with a unit may be of.
std::optional<Measure> measure_of(const OptionSpec& spec) {
  if (spec.unit == Unit::kBytes || spec.unit == Unit::kMemoryBytes) return Measure::kBytes;
  if (spec.unit == Unit::kMicroseconds) return Measure::kMicroseconds;
  return std::nullopt;
}

std::string range_of(const OptionSpec& spec) {
  const char* kind = spec.type == OptionType::kInteger ? "an integer" : "a number";
  std::string text =
      std::string("give ") + kind + " from " + plain(spec.minimum) + " to " + plain(spec.maximum);
  if (const auto measure = measure_of(spec))
    text.append(" ").append(name_of(spec.unit)).append(", or one with a unit of ").append(units_of(*measure));
  return text;
}

void check_value(const OptionSpec& spec, const std::string& value, const std::string& where) {
  if (spec.type == OptionType::kText) {
    if (!spec.choices.empty() && std::ranges::find(spec.choices, value) == spec.choices.end()) {
      throw InvalidInput(in_quotes(value) + " is not one of its values", where,
                         choice_of(value, spec.choices, "use one of"));
    }
    return;
  }
  if (const auto measure = measure_of(spec)) {
    const std::string remedy = unit_remedy(value, *measure);
    if (!remedy.empty()) throw InvalidInput(in_quotes(value) + " has an unknown unit", where, remedy);
  }
  const std::optional<double> number = parse<double>(value);
  const bool whole = spec.type == OptionType::kNumber || parse<std::int64_t>(value).has_value();
  if (!number || !whole || !(*number >= spec.minimum && *number <= spec.maximum)) {
    throw InvalidInput(in_quotes(value) + " is out of range", where, range_of(spec));
  }
}

}  // namespace

std::string_view name_of(Unit unit) {
  constexpr std::string_view kNames[] = {"",           "bytes",  "bytes of memory", "us",
                                         "iterations", "layers", "nodes",           "share"};
  return kNames[static_cast<std::size_t>(unit)];
}

TunedRange scaled_to_model(TunedRange range, double minimum, std::int64_t model_bytes) {
  const double share =
      std::min(1.0, 1.25 * static_cast<double>(std::max<std::int64_t>(model_bytes, 1)) / range.high);
  return {std::max(minimum, range.low * share), std::max(minimum, range.high * share), range.scale};
}

std::string_view name_of(Scale scale) { return scale == Scale::kLinear ? "linear" : "logarithmic"; }

OptionValues::OptionValues(std::string_view scheme, std::span<const OptionSpec> specs,
                           const std::map<std::string, std::string>& set)
    : scheme_(scheme), specs_(specs.begin(), specs.end()), set_(set) {
  for (auto& [name, value] : set_) {
    const auto spec = std::ranges::find(specs_, name, &OptionSpec::name);
    if (spec == specs_.end()) {
      std::vector<std::string_view> names;
      for (const OptionSpec& known : specs_) names.push_back(known.name);
      throw InvalidInput("scheme '" + scheme_ + "' has no option " + in_quotes(name),
                         "option " + shortened(name),
                         names.empty() ? "it has no options" : choice_of(name, names, "it has"));
    }
    if (const auto measure = measure_of(*spec)) value = without_unit(value, *measure);
    check_value(*spec, value, "option " + name + " of " + scheme_);
  }
}

const OptionSpec& OptionValues::spec(std::string_view name, [[maybe_unused]] OptionType type) const {
  const auto found = std::ranges::find(specs_, name, &OptionSpec::name);
  assert(found != specs_.end() && found->type == type);
  return *found;
}

std::optional<std::string> OptionValues::value(const OptionSpec& spec) const {
  const auto found = set_.find(std::string(spec.name));
  if (found != set_.end()) return found->second;
  if (spec.default_value.empty()) return std::nullopt;
  return std::string(spec.default_value);
}

std::optional<std::int64_t> OptionValues::integer(std::string_view name) const {
  const std::optional<std::string> text = value(spec(name, OptionType::kInteger));
  return text ? parse<std::int64_t>(*text) : std::nullopt;
}

std::optional<double> OptionValues::number(std::string_view name) const {
  const std::optional<std::string> text = value(spec(name, OptionType::kNumber));
  return text ? parse<double>(*text) : std::nullopt;
}

std::string OptionValues::text(std::string_view name) const {
  return value(spec(name, OptionType::kText)).value_or(std::string());
}

Compression OptionValues::compression() const {
  Compression compression;
  if (std::ranges::find(specs_, "compressor", &OptionSpec::name) == specs_.end()) return compression;
  const std::string name = text("compressor");
  if (name != "none" && name != kPlannersChoice) compression.name = name;
  for (const std::string_view parameter : {"density", "rank", "momentum", "clip", "warm_up"}) {
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
    compression.parameters[std::string(parameter)] = parameter == "rank" || parameter == "warm_up"
                                                         ? static_cast<double>(*integer(option))
                                                         : *number(option);
  }
  return compression;
}

}  // namespace gradweave
