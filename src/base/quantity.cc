#include "base/quantity.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/names.h"

namespace gradweave {
namespace {

struct NamedUnit {
  std::string_view name;
  int exponent = 0;  // of ten
  double factor = 1;
};

constexpr NamedUnit kSizes[] = {{"B"},
                                {"kB", 3},
                                {"MB", 6},
                                {"GB", 9},
                                {"TB", 12},
                                {"KiB", 0, 0x1p10},
                                {"MiB", 0, 0x1p20},
                                {"GiB", 0, 0x1p30},
                                {"TiB", 0, 0x1p40}};
constexpr NamedUnit kTimes[] = {{"ns", -3},     {"us", 0},      {"ms", 3},      {"s", 6},
                                {"min", 6, 60}, {"h", 6, 3600}, {"d", 6, 86400}};
constexpr NamedUnit kRates[] = {{"kb/s", -6}, {"Mb/s", -3},    {"Gb/s", 0},
                                {"Tb/s", 3},  {"MB/s", -3, 8}, {"GB/s", 0, 8}};

std::span<const NamedUnit> table_of(Measure measure) {
  if (measure == Measure::kBytes) return kSizes;
  return measure == Measure::kMicroseconds ? std::span<const NamedUnit>(kTimes) : kRates;
}

// `number` is a decimal: with the power of ten in its text, it is rounded once.
std::optional<double> scaled(std::string_view number, const NamedUnit& unit) {
  int exponent = unit.exponent;
  const std::size_t e = std::min(number.find_first_of("eE"), number.size());
  if (e < number.size()) {
    const char* first = number.data() + e + 1;
    if (*first == '+') ++first;
    int own = 0;
    if (std::from_chars(first, number.data() + number.size(), own).ec != std::errc{}) return std::nullopt;
    if (std::abs(own) > 1000) return std::nullopt;
    exponent += own;
  }
  const std::string text = std::string(number.substr(0, e)) + "e" + std::to_string(exponent);
  double value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc{}) return std::nullopt;
  return value * unit.factor;
}

// A number and what stands behind it, a blank between them left out; nothing if `text` begins with no number.
struct Parts {
  double plain = 0;
  std::string_view number, unit;
};

std::optional<Parts> parts_of(std::string_view text) {
  Parts parts;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parts.plain);
  if (error != std::errc{}) return std::nullopt;
  parts.number = text.substr(0, static_cast<std::size_t>(end - text.data()));
  parts.unit = text.substr(parts.number.size());
  if (parts.unit.starts_with(' ')) parts.unit.remove_prefix(1);
  return parts;
}

std::vector<std::string_view> unit_names(Measure measure) {
  std::vector<std::string_view> names;
  for (const NamedUnit& unit : table_of(measure)) names.push_back(unit.name);
  return names;
}

}  // namespace

std::optional<double> quantity(std::string_view text, Measure measure) {
  const std::optional<Parts> parts = parts_of(text);
  if (!parts) return std::nullopt;
  if (parts->number.size() == text.size()) return parts->plain;
  if (!std::isfinite(parts->plain)) return std::nullopt;
  const auto units = table_of(measure);
  const auto unit = std::ranges::find(units, parts->unit, &NamedUnit::name);
  return unit == units.end() ? std::nullopt : scaled(parts->number, *unit);
}

std::string without_unit(std::string_view text, Measure measure) {
  const bool plain = text.empty() || text.find_first_not_of("+-.0123456789eE") == std::string_view::npos;
  const std::optional<double> value = plain ? std::nullopt : quantity(text, measure);
  if (!value) return std::string(text);
  char digits[64];
  const bool whole = std::nearbyint(*value) == *value && std::abs(*value) < 0x1p53;
  char* const end = whole
                        ? std::to_chars(digits, digits + sizeof digits, static_cast<std::int64_t>(*value)).ptr
                        : std::to_chars(digits, digits + sizeof digits, *value).ptr;
  return {digits, end};
}

std::string units_of(Measure measure) { return listed(unit_names(measure)); }

std::string unit_remedy(std::string_view text, Measure measure) {
  const std::optional<Parts> parts = parts_of(text);
  const std::vector<std::string_view> names = unit_names(measure);
  if (!parts || parts->unit.empty() || std::ranges::find(names, parts->unit) != names.end()) return {};
  const auto meant = nearest(parts->unit, names);
  return (meant ? "did you mean '" + std::string(parts->number).append(*meant) + "'? Use" : "use") +
         std::string(" a unit of ") + listed(names);
}

}  // namespace gradweave
