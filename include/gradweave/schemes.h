// The schemes: planners (workload, cluster, options) -> plan. One source file and one registry row each.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
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
  // Its own, then those of the compressors for what its ops carry, and for averages those of the outer optimizer.
  std::vector<OptionSpec> options;
  // What its ops carry.
  Payload payload = Payload::kGradient;
  bool chooses = false;  // its plans are those of other schemes, or found by search beside them
  // Throws InvalidInput for values that are each in range but don't go together.
  std::function<void(const SchemeOptions&)> check;
  // Returns a plan that passes validate(), or why there is none. Of two levels only schemes that choose are asked; the
  // others plan for flattened(). Pure: same input, same plan, byte for byte.
  std::function<PlanResult(const Workload&, const Cluster&, const SchemeOptions&)> plan;
};

// Returns every scheme, in the order of the documentation.
const std::vector<SchemeInfo>& schemes();

// Returns the scheme called `name`. Errors: InvalidInput listing the valid names.
const SchemeInfo& find_scheme(std::string_view name);

// Returns the options of a scheme of which none is set. Errors: those of find_scheme().
SchemeOptions options_of(std::string_view scheme);

// Returns the options of a scheme as they are written on a command line, in JSON, in Python: {name: text}. Needs no
// workload: what is wrong with them can be said before anything runs. Errors: InvalidInput for unknown schemes and
// options, and values that are out of range or don't go together.
SchemeOptions parse_options(std::string_view scheme, const std::map<std::string, std::string>& written);

// A scheme with options, as one text names it: "delayed_averaging compressor=auto".
struct Method {
  std::string name;  // the text
  std::string scheme;
  std::map<std::string, std::string> options;
};

// Returns the method that `text` names. Errors: InvalidInput for what is no assignment, and as parse_options().
Method parse_method(std::string_view text);

// Options that are written once for several schemes: each takes those that it has.
class CommonOptions {
 public:
  CommonOptions() = default;
  explicit CommonOptions(std::map<std::string, std::string> written) : written_(std::move(written)) {}

  // Returns those of a scheme, or that it is infeasible under them: some value is not among its choices, but among
  // those of another scheme. Errors: InvalidInput as parse_options(), but for options that the scheme doesn't have.
  std::variant<SchemeOptions, Infeasible> of(std::string_view scheme) const;

  // Returns these and the method's own, which come first where both set an option.
  CommonOptions with(const Method& method) const;

  // Returns the same but for a compressor and its parameters.
  CommonOptions without_compressor() const;

 private:
  std::map<std::string, std::string> written_;
};

// Returns the scheme's plan for the workload on the cluster, with scheme, options, hashes and workers
// filled in, and what it sends compressed if the options say so. On two levels every op is taken in steps, inside nodes
// and between them. What a tuning found (buffer_bytes of dear)
// stands beside the options that were set. Errors: InvalidInput for options that don't go together, workloads or
// clusters that fail check(), and a compressor that the scheme's collectives can't carry.
PlanResult make_plan(const Workload& workload, const Cluster& cluster, const SchemeOptions& options);

// The same under parse_options(scheme, written).
PlanResult make_plan(std::string_view scheme, const Workload& workload, const Cluster& cluster,
                     const std::map<std::string, std::string>& written = {});

}  // namespace gradweave
