// The schemes: planners (workload, cluster, options) -> plan. One source file and one registry row each.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/effects.h"
#include "gradweave/options.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"

namespace gradweave {

struct SchemeInfo {
  std::string_view name;
  std::string_view summary;  // one line
  std::string_view paper;
  Effect effect = Effect::kExact;
  // The options of its own; schemes() adds those of the compressors for what its ops carry, and for averages
  // those of the outer optimizer.
  std::vector<OptionSpec> options;
  // What its ops carry.
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
// filled in, and what it sends compressed if the options say so. What a tuning found (buffer_bytes of dear)
// stands beside the options that were set. Errors: those of check_options(); InvalidInput for workloads or
// clusters that fail check(), and a compressor that the scheme's collectives can't carry.
PlanResult make_plan(std::string_view name, const Workload& workload, const Cluster& cluster,
                     const std::map<std::string, std::string>& options = {});

}  // namespace gradweave
