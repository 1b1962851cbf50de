// The core on JSON texts, for callers from another language.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradweave::runtime {

// Returns the plan of a scheme as JSON, or {"starves": reason}. `options`: {name: text}. Errors:
// InvalidInput.
std::string make_plan_text(const std::string& workload, const std::string& cluster, const std::string& scheme,
                           const std::string& options);

// Throws InvalidInput for options that no workload could make right. `options`: {name: text}.
void check_options_text(const std::string& scheme, const std::string& options);

// Throws InvalidInput for what can't be tuned in so many trials (tune.h). `options`: {name: text}.
void check_tuning_text(const std::string& scheme, const std::string& options, int trials);

// Returns scheme `auto`'s admissible plans, best first: {"plans": [{"prediction": as simulate_text() returns,
// "effects": ["exact", ...], "demands": {"steps_in_forward": false, ...}, "plan": a plan whose "finding" says
// whose it is}, ...]}, or {"starves": reason}. `options`: those of `auto`, {name: text}. Errors: InvalidInput.
std::string ranked_plans_text(const std::string& workload, const std::string& cluster,
                              const std::string& options);

// Returns what the plan asks of a training loop: {"steps_in_forward": false, ...}.
std::string demands_text(const std::string& plan);

// Returns what the plan does, with the names of `gradweave simulate --json`. `options`: {"optimizer_us": the
// time of one whole step, "contention": how many times longer compute takes while a link is busy}.
std::string simulate_text(const std::string& plan, const std::string& workload, const std::string& cluster,
                          const std::string& options);

// Returns {"startup_us", "us_per_byte", "residual"} of {"measurements": [{"bytes", "us"}, ...]}. See fit.h.
std::string fit_link_text(const std::string& measurements);

// Returns cut_layers() of effects.h.
std::vector<std::int32_t> cut_layers_text(const std::string& plan, const std::string& workload);

// Returns every violation as "where: what; remedy".
std::vector<std::string> validate_text(const std::string& plan, const std::string& workload);

// Returns {"schemes": [{"name": ..., "summary": ..., "consistency": ..., "options": [...]}]}.
std::string schemes_text();

// Writes the page of report.h to `path`. `given`: {"workload", "cluster", "schemes": [name, ...], "plans": {name: plan},
// "timelines": [...], "measured": [sentence, ...]}, each of which may be missing; without schemes those that don't
// search among the others. Errors: InvalidInput; RuntimeFailure if the disk fails.
void write_report(const std::string& path, const std::string& given);

// Returns timelines (JSON each) as one trace for Perfetto.
std::string chrome_trace_text(const std::vector<std::string>& timelines);

}  // namespace gradweave::runtime
