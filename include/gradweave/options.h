// Options of schemes: what there is to set, and checked values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gradweave {

enum class OptionType : std::uint8_t {
  kInteger,
  kNumber,
  kText,  // one of `choices`, or free if there are none
};

enum class Unit : std::uint8_t {
  kNone,
  kBytes,
  kMemoryBytes,
  kMicroseconds,
  kIterations,
  kLayers,
  kNodes,
  kShare
};

// Returns the unit as files and tables have it: "bytes", "us", "iterations", ...; empty for kNone.
std::string_view name_of(Unit unit);

enum class Scale : std::uint8_t { kLinear, kLogarithmic };

// Where an option is looked for when a scheme is tuned on the running job (tune.h).
struct TunedRange {
  double low = 0, high = 0;  // inclusive
  Scale scale = Scale::kLogarithmic;
};

// Returns a range in bytes as a model of `model_bytes` needs it: both ends scaled down alike until the upper one is a
// little above the model, but not below `minimum`. Larger fusions would all be the same plan. A model that is larger has
// the range as it is.
TunedRange scaled_to_model(TunedRange range, double minimum, std::int64_t model_bytes);

// Returns "linear" or "logarithmic".
std::string_view name_of(Scale scale);

// The value of an option: an integer, a number, or a text: one of its choices, or free if there are none.
using OptionValue = std::variant<std::int64_t, double, std::string>;

// Returns the value as one writes it: "25000000", "0.05", "greedy".
std::string to_string(const OptionValue& value);

// Returns the number that it is. The caller owes an integer or a number.
double number_of(const OptionValue& value);

// One option of a scheme. This table feeds the command line, JSON, Python and the documentation.
struct OptionSpec {
  std::string name;
  OptionType type = OptionType::kInteger;
  Unit unit = Unit::kNone;
  std::string default_value;        // as it would be written; empty: `default_source` says how it is found
  std::string default_source;       // paper, PyTorch, ... where the default comes from
  double minimum = 0, maximum = 0;  // inclusive, for integers and numbers
  std::vector<std::string_view> choices;
  std::string meaning;
  std::optional<TunedRange> tuned;  // nothing: it isn't
};

// The options of one scheme that are set, each of its type and in its range; the others have their defaults. Its
// planner reads them as a struct of its own. Sets of one scheme compare.
class SchemeOptions {
 public:
  // Of no scheme: it has none.
  SchemeOptions() = default;
  // `scheme`, `specs`: those of the registry's row (schemes.h), which outlives all.
  SchemeOptions(std::string_view scheme, std::span<const OptionSpec> specs)
      : scheme_(scheme), specs_(specs) {}

  std::string_view scheme() const { return scheme_; }

  // Returns the option's row, null if the scheme has none of that name.
  const OptionSpec* spec(std::string_view name) const;

  // Sets an option to a value, or to one that is written: sizes and times may have a unit ("25MB", "1.5ms").
  // Errors: InvalidInput if the scheme has no such option (the message lists those it has), or the value is of
  // another type or out of range.
  void set(std::string_view name, OptionValue value);
  void parse(std::string_view name, std::string_view written);
  void unset(std::string_view name);

  // Returns what is set, null if nothing is.
  const OptionValue* find(std::string_view name) const;
  // Returns what is set, or else the default, if there is one. The caller owes an option of the scheme.
  std::optional<OptionValue> value(std::string_view name) const;
  bool empty() const { return values_.empty(); }

  // Returns what is set as it is written, for Plan::options.
  std::map<std::string, std::string> written() const;

  friend bool operator==(const SchemeOptions& x, const SchemeOptions& y) {
    return x.scheme_ == y.scheme_ && x.values_ == y.values_;
  }

 private:
  const OptionSpec& known(std::string_view name) const;

  std::string_view scheme_;
  std::span<const OptionSpec> specs_;
  std::map<std::string_view, OptionValue> values_;  // by the names in the rows
};

}  // namespace gradweave
