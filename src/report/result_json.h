// Results as JSON objects: what the command line prints and Python gets.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "gradweave/decimal.h"
#include "gradweave/observe.h"
#include "gradweave/ranked_plans.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"
#include "gradweave/tune.h"

namespace gradweave {

using Json = nlohmann::ordered_json;

// Returns `numerator_ns / denominator` in microseconds: exact where the decimal is finite, else to 6 places.
double microseconds_of(Nanoseconds numerator_ns, std::int64_t denominator = 1);
// Returns a derived time in microseconds, to 6 places.
double microseconds_rounded(double nanoseconds);

// Returns the object that `simulate --json` prints.
Json to_object(const SimulationResult& result);

// Returns what was measured in training beside what was predicted; `text` has it for people.
Json to_object(const Observer::Report& report);

// Returns {"scheme", "options", "iteration_us", "effects"}, as a plan's search report has them.
Json to_object(const PlanSummary& summary);

// Returns {"steps_in_forward": false, ..., "synchronous": true}.
Json to_object(const Demands& demands);

// Returns {"plans": [{"prediction": as `simulate --json`, "effects", "demands", "plan"}, ...]}, best first, or
// {"starves": reason}.
Json to_object(const RankedPlans& plans);

// Returns {"trials": [{"options": {name: value}, "measured_us": [...]}, ...], "best": place, "ended": whether, "seconds"}:
// what was measured, null where a plan could not come into force. And back. Errors: those of nlohmann::json.
Json to_object(const TuningReport& report);
TuningReport tuning_report_of(const Json& object);

// Returns the object that `schemes --json` prints: every scheme with its options.
Json schemes_object();

// Returns the text of `value`, on one line if `indent` is -1; bytes that are not UTF-8 become U+FFFD.
std::string dump(const Json& value, int indent = -1);

}  // namespace gradweave
