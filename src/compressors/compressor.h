// What the core knows of a compressor: its parameters as a struct, their ranges, and what a message becomes on the
// wire. Each has one file here, which its struct and its row are in, and a line of the table in compressors.cc; what
// encodes it with torch is src/runtime/codec/NAME.cc, which takes the same struct.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>

#include "gradweave/compression.h"

namespace gradweave::codec {

// A parameter of a compressor whose parameters are the struct P.
template <typename P>
struct Parameter {
  std::string_view name;
  double (*get)(const P&);
  void (*set)(P&, double);
  double minimum = 0, maximum = 0;  // inclusive
  std::string_view meaning;
  bool integer = false;
  bool at_start = false;  // of the first iterations of a run only
};

// Returns the parameter that `member` is; its initial value is the default.
template <auto member>
constexpr auto parameter(std::string_view name, double minimum, double maximum, std::string_view meaning,
                         bool at_start = false) {
  return [=]<typename P, typename T>(T P::*) {
    return Parameter<P>{.name = name,
                        .get = [](const P& p) { return static_cast<double>(p.*member); },
                        .set = [](P& p, double value) { p.*member = static_cast<T>(value); },
                        .minimum = minimum,
                        .maximum = maximum,
                        .meaning = meaning,
                        .integer = std::is_integral_v<T>,
                        .at_start = at_start};
  }(member);
}

// For P::parameters() of a compressor that has none.
template <typename P>
inline constexpr std::array<Parameter<P>, 0> kNoParameters{};

// Returns the struct of `values`; what they leave out has its default. The caller owes values in range.
// O(parameters * log values).
template <typename P>
P parameters_of(const std::map<std::string, double>& values) {
  P result;
  if (values.empty()) return result;
  for (const Parameter<P>& parameter : P::parameters()) {
    const auto value = values.find(std::string(parameter.name));
    if (value != values.end()) parameter.set(result, value->second);
  }
  return result;
}

// Returns `info` with all that follows from the struct P: the table of its parameters, and as far as P has them
//   CompressedCost gradient_cost(const CompressedMessage&) const
//   CompressedCost average_cost(const CompressedMessage&) const
//   std::int64_t sent_elements(const BlockShape&) const
//   bool sends_momentum() const
template <typename P>
CompressorInfo compressor(CompressorInfo info) {
  using Values = std::map<std::string, double>;
  const P defaults;
  for (const Parameter<P>& parameter : P::parameters()) {
    info.parameters.push_back({.name = parameter.name,
                               .default_value = parameter.get(defaults),
                               .minimum = parameter.minimum,
                               .maximum = parameter.maximum,
                               .meaning = parameter.meaning,
                               .integer = parameter.integer,
                               .at_start = parameter.at_start});
  }
  info.gradient_cost = [](const CompressedMessage& message, const Values& values) {
    return parameters_of<P>(values).gradient_cost(message);
  };
  if constexpr (requires { defaults.average_cost(CompressedMessage{}); }) {
    info.average_cost = [](const CompressedMessage& message, const Values& values) {
      return parameters_of<P>(values).average_cost(message);
    };
  }
  if constexpr (requires { defaults.sent_elements(BlockShape{}); }) {
    info.sent_elements = [](const BlockShape& block, const Values& values) {
      return parameters_of<P>(values).sent_elements(block);
    };
  }
  if constexpr (requires { defaults.sends_momentum(); }) {
    info.sends_momentum = [](const Values& values) { return parameters_of<P>(values).sends_momentum(); };
  }
  return info;
}

// ---- costs that several compressors share. Errors: InvalidInput beyond 2^62 bytes.

inline constexpr std::int64_t kIndexBytes = 4;

// An all-gather of `bytes` bytes from each worker.
CompressedCost all_gathered(std::int64_t bytes, std::int64_t workers);

// An all-reduce of `bytes` bytes that are summed as they are.
inline CompressedCost all_reduced(std::int64_t bytes) {
  return {.equivalent_bytes = bytes, .encoded_bytes = bytes};
}

// What a density keeps, as values and indices.
std::int64_t sparse_bytes(const CompressedMessage& message, double density);

}  // namespace gradweave::codec
