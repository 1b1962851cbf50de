// The schemes: planners (workload, cluster, options) -> plan. One source file and one registry row each.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/effects.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"

namespace gradweave {

enum class OptionType : std::uint8_t {
  kInteger,
  kNumber,
  kText,  // one of `choices`, or free if there are none
};

// One option of a scheme. This table feeds the command line, JSON, Python and the documentation.
struct OptionSpec {
  std::string_view name;
  OptionType type = OptionType::kInteger;
  std::string_view unit;            // "bytes", "us", "iterations", ...; may be empty
  std::string_view default_value;   // as it would be written; empty: `default_source` says how it is found
  std::string_view default_source;  // paper, PyTorch, ... where the default comes from
  double minimum = 0, maximum = 0;  // inclusive, for integers and numbers
  std::vector<std::string_view> choices;
  std::string_view meaning;
};

// Checked option values of one scheme. A value that was not set reads as its default.
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

  // Returns the compressor that the scheme's gradients go through; none if the scheme has no such option or
  // it is unset. Errors: InvalidInput for a parameter that the chosen compressor does not have, or out of its
  // range.
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

struct SchemeInfo {
  std::string_view name;
  std::string_view summary;  // one line
  std::string_view paper;
  Consistency consistency = Consistency::kExact;
  // The options of its own; for a scheme of gradients schemes() adds those of the compressors.
  std::vector<OptionSpec> options;
  // What its ops carry. Gradients can be compressed, by any scheme.
  Payload payload = Payload::kGradient;
  bool chooses = false;  // its plans are those of other schemes, or found by search beside them
  // Throws InvalidInput for values that are each in range but don't go together; null: there are none.
  void (*check)(const OptionValues&) = nullptr;
  // Returns a plan that passes validate(), or why there is none. Pure: same input, same plan, byte for byte.
  PlanResult (*plan)(const Workload&, const Cluster&, const OptionValues&) = nullptr;
};

// Returns every scheme, in the order of the documentation.
const std::vector<SchemeInfo>& schemes();

// Returns the scheme called `name`. Errors: InvalidInput listing the valid names.
const SchemeInfo& find_scheme(std::string_view name);

// Returns the checked options of scheme `name`. Needs no workload: what is wrong with them can be said before
// anything runs. Errors: InvalidInput for unknown schemes and options, and values that are out of range or
// don't go together.
OptionValues check_options(std::string_view name, const std::map<std::string, std::string>& options);

// Returns scheme `name`'s plan for the workload on the cluster, with scheme, options, hashes and workers
// filled in, and its gradients compressed if the options say so. What a tuning found (buffer_bytes of dear)
// stands beside the options that were set. Errors: those of check_options(); InvalidInput for workloads or
// clusters that fail check(), and a compressor that the scheme's collectives can't carry.
PlanResult make_plan(std::string_view name, const Workload& workload, const Cluster& cluster,
                     const std::map<std::string, std::string>& options = {});

}  // namespace gradweave
