#include "gradweave/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/names.h"
#include "base/quantity.h"
#include "base/quoted.h"
#include "gradweave/error.h"

namespace gradweave {
namespace {

// Without an exponent, as people write sizes and times, unless that were long.
std::string plain(double number) {
  const double magnitude = std::abs(number);
  const auto format = magnitude == 0 || (magnitude >= 1e-6 && magnitude < 1e16) ? std::chars_format::fixed
                                                                                : std::chars_format::general;
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, number, format).ptr};
}

template <typename Number>
std::optional<Number> parsed(std::string_view text) {
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

[[noreturn]] void refuse(const OptionSpec& spec, std::string_view written, const std::string& where) {
  if (const auto measure = measure_of(spec)) {
    const std::string remedy = unit_remedy(written, *measure);
    if (!remedy.empty()) throw InvalidInput(in_quotes(written) + " has an unknown unit", where, remedy);
  }
  if (spec.type != OptionType::kText)
    throw InvalidInput(in_quotes(written) + " is out of range", where, range_of(spec));
  throw InvalidInput(in_quotes(written) + " is not one of its values", where,
                     choice_of(written, spec.choices, "use one of"));
}

// Whether `value` is of the option's type and in its range.
bool admits(const OptionSpec& spec, const OptionValue& value) {
  const auto in_range = [&](double number) { return number >= spec.minimum && number <= spec.maximum; };
  switch (spec.type) {
    case OptionType::kInteger: {
      const auto* integer = std::get_if<std::int64_t>(&value);
      return integer != nullptr && in_range(static_cast<double>(*integer));
    }
    case OptionType::kNumber: {
      const auto* number = std::get_if<double>(&value);
      return number != nullptr && in_range(*number);
    }
    case OptionType::kText:
      break;
  }
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr &&
         (spec.choices.empty() || std::ranges::find(spec.choices, *text) != spec.choices.end());
}

// The value that is written; nothing if it is none of the option's type.
std::optional<OptionValue> value_of(const OptionSpec& spec, const std::string& written) {
  switch (spec.type) {
    case OptionType::kInteger:
      if (const auto integer = parsed<std::int64_t>(written)) return *integer;
      return std::nullopt;
    case OptionType::kNumber:
      if (const auto number = parsed<double>(written)) return *number;
      return std::nullopt;
    case OptionType::kText:
      break;
  }
  return written;
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

std::string to_string(const OptionValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value)) return plain(*number);
  return std::get<std::string>(value);
}

double number_of(const OptionValue& value) {
  const auto* integer = std::get_if<std::int64_t>(&value);
  return integer != nullptr ? static_cast<double>(*integer) : std::get<double>(value);
}

const OptionSpec* SchemeOptions::spec(std::string_view name) const {
  const auto found = std::ranges::find(specs_, name, &OptionSpec::name);
  return found == specs_.end() ? nullptr : &*found;
}

const OptionSpec& SchemeOptions::known(std::string_view name) const {
  if (const OptionSpec* found = spec(name)) return *found;
  std::vector<std::string_view> names;
  for (const OptionSpec& each : specs_) names.push_back(each.name);
  throw InvalidInput("scheme '" + std::string(scheme_) + "' has no option " + in_quotes(name),
                     "option " + shortened(name),
                     names.empty() ? "it has no options" : choice_of(name, names, "it has"));
}

void SchemeOptions::set(std::string_view name, OptionValue value) {
  const OptionSpec& spec = known(name);
  if (!admits(spec, value))
    refuse(spec, to_string(value), "option " + std::string(name) + " of " + std::string(scheme_));
  values_[spec.name] = std::move(value);
}

void SchemeOptions::parse(std::string_view name, std::string_view written) {
  const OptionSpec& spec = known(name);
  std::string text(written);
  if (const auto measure = measure_of(spec)) text = without_unit(text, *measure);
  std::optional<OptionValue> value = value_of(spec, text);
  if (!value || !admits(spec, *value))
    refuse(spec, text, "option " + std::string(name) + " of " + std::string(scheme_));
  values_[spec.name] = *std::move(value);
}

void SchemeOptions::unset(std::string_view name) { values_.erase(name); }

const OptionValue* SchemeOptions::find(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<OptionValue> SchemeOptions::value(std::string_view name) const {
  if (const OptionValue* set = find(name)) return *set;
  const OptionSpec& spec = known(name);
  if (spec.default_value.empty()) return std::nullopt;
  return value_of(spec, spec.default_value);
}

std::map<std::string, std::string> SchemeOptions::written() const {
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : values_) texts.emplace(name, to_string(value));
  return texts;
}

}  // namespace gradweave
