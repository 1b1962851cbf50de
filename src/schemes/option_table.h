// From a scheme's struct of options to its row of the registry: each option is bound to a member, whose initial value
// is the default.
//
// A struct that has a member `compression` (Compression) sends gradients, one that has `averages` (AverageOptions)
// averages of parameters; they come with options of their own (compressed.h).
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradweave/schemes.h"
#include "schemes/compressed.h"

namespace gradweave {

// An option of the struct S.
template <typename S>
struct Option {
  OptionSpec spec;
  std::function<void(S&, const OptionValue&)> assign;
};

// The values of a text option, in the order in which they are listed.
template <typename E>
using Choices = std::vector<std::pair<std::string_view, E>>;

// Each returns the option of a member; type, default and choices of `spec` follow from it.
template <typename S>
Option<S> option(std::int64_t S::*member, OptionSpec spec) {
  spec.type = OptionType::kInteger;
  spec.default_value = to_string(S{}.*member);
  return {spec, [member](S& s, const OptionValue& value) { s.*member = std::get<std::int64_t>(value); }};
}

template <typename S>
Option<S> option(double S::*member, OptionSpec spec) {
  spec.type = OptionType::kNumber;
  spec.default_value = to_string(S{}.*member);
  return {spec, [member](S& s, const OptionValue& value) { s.*member = std::get<double>(value); }};
}

template <typename S>
Option<S> option(std::optional<std::int64_t> S::*member, OptionSpec spec) {
  spec.type = OptionType::kInteger;
  return {spec, [member](S& s, const OptionValue& value) { s.*member = std::get<std::int64_t>(value); }};
}

template <typename S>
Option<S> option(std::optional<double> S::*member, OptionSpec spec) {
  spec.type = OptionType::kNumber;
  return {spec, [member](S& s, const OptionValue& value) { s.*member = std::get<double>(value); }};
}

template <typename S>
Option<S> option(bool S::*member, OptionSpec spec) {
  spec.type = OptionType::kText;
  spec.choices =
      S{}.*member ? std::vector<std::string_view>{"on", "off"} : std::vector<std::string_view>{"off", "on"};
  spec.default_value = spec.choices.front();
  return {spec,
          [member](S& s, const OptionValue& value) { s.*member = std::get<std::string>(value) == "on"; }};
}

// E: an enumeration, or an optional one, which has no default.
template <typename S, typename M>
Option<S> option(M S::*member, const Choices<std::type_identity_t<M>>& choices, OptionSpec spec) {
  spec.type = OptionType::kText;
  for (const auto& [name, value] : choices) {
    spec.choices.push_back(name);
    if (value == S{}.*member) spec.default_value = name;
  }
  return {spec, [member, choices](S& s, const OptionValue& value) {
            const auto& text = std::get<std::string>(value);
            s.*member =
                std::ranges::find(choices, text, [](const auto& choice) { return choice.first; })->second;
          }};
}

// Returns the struct of what is set.
template <typename S>
S struct_of(const std::vector<Option<S>>& table, const SchemeOptions& options) {
  S result;
  for (const Option<S>& option : table) {
    if (const OptionValue* value = options.find(option.spec.name)) option.assign(result, *value);
  }
  if constexpr (requires { result.compression; }) result.compression = compression_of(options);
  if constexpr (requires { result.averages; }) result.averages = averages_of(options);
  return result;
}

// Returns the row of a scheme: `info` has name, summary, paper and effect, `table` its own options. `check` throws
// InvalidInput for values that don't go together.
template <typename S>
SchemeInfo scheme_row(SchemeInfo info, std::vector<Option<S>> table,
                      PlanResult (*plan)(const Workload&, const Cluster&, const S&),
                      void (*check)(const S&) = nullptr) {
  for (const Option<S>& option : table) info.options.push_back(option.spec);
  constexpr bool averages = requires(S options) { options.averages; };
  info.payload = averages ? Payload::kParameter : Payload::kGradient;
  std::ranges::copy(averages ? average_options() : compressor_options(), std::back_inserter(info.options));
  info.check = [table, check](const SchemeOptions& options) {
    const S values = struct_of(table, options);
    if (check != nullptr) check(values);
  };
  info.plan = [table = std::move(table), plan](const Workload& workload, const Cluster& cluster,
                                               const SchemeOptions& options) {
    return plan(workload, cluster, struct_of(table, options));
  };
  return info;
}

}  // namespace gradweave
