// Options of schemes: what there is to set, and checked values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/compression.h"

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

// One option of a scheme. This table feeds the command line, JSON, Python and the documentation.
struct OptionSpec {
  std::string_view name;
  OptionType type = OptionType::kInteger;
  Unit unit = Unit::kNone;
  std::string_view default_value;   // as it would be written; empty: `default_source` says how it is found
  std::string_view default_source;  // paper, PyTorch, ... where the default comes from
  double minimum = 0, maximum = 0;  // inclusive, for integers and numbers
  std::vector<std::string_view> choices;
  std::string_view meaning;
  std::optional<TunedRange> tuned;  // nothing: it isn't
};

// Checked option values of one scheme. A value that was not set reads as its default. Sizes and times may have
// a unit ("25MB", "1.5ms"); set() has them without.
class OptionValues {
 public:
  // Errors: InvalidInput if a name is unknown (the message lists the scheme's options) or a value out of
  // range.
  OptionValues(std::string_view scheme, std::span<const OptionSpec> specs,
               const std::map<std::string, std::string>& set);

  // Each returns the value, or nothing if unset and without a default. The caller owes a name that has a spec
  // of that type.
  std::optional<std::int64_t> integer(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::string text(std::string_view name) const;  // empty if unset and without a default
  bool on(std::string_view name) const { return text(name) == "on"; }

  // Returns the compressor of what the scheme sends; none if it has no such option, or it is unset or left to
  // the planner. Errors: InvalidInput for a parameter that the chosen compressor does not have, or out of
  // its range.
  Compression compression() const;

  // Returns what the user set, for Plan::options.
  const std::map<std::string, std::string>& set() const { return set_; }

 private:
  const OptionSpec& spec(std::string_view name, OptionType type) const;
  std::optional<std::string> value(const OptionSpec& spec) const;

  std::string scheme_;
  std::vector<OptionSpec> specs_;
  std::map<std::string, std::string> set_;
};

}  // namespace gradweave
