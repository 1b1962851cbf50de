// Scheme `auto`'s admissible plans, best first: for a caller who may be unable to run the best one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/effects.h"
#include "gradweave/options.h"
#include "gradweave/plan.h"
#include "gradweave/simulate.h"
#include "gradweave/workload.h"

namespace gradweave {

inline constexpr std::string_view kAuto = "auto";  // the scheme

struct RankedPlan {
  Plan
      plan;  // with scheme, hashes and workers; its search report says whose plan it is and why it stands here
  SimulationResult prediction;
  std::vector<Effect> effects;  // effects_of(plan)
  Demands demands;              // demands_of(plan)
};

using RankedPlans = std::variant<std::vector<RankedPlan>, Infeasible>;

// Returns the place of the first of `times`, which stand in order of preference, that is longer than the shortest by at
// most the share `tolerance` of it: the rule by which `auto` chooses. The caller owes one time or more. O(n).
std::size_t first_within(std::span<const double> times, double tolerance);

// Returns the plans that keep the limits of `options`, which the caller owes of scheme `auto`: each is the one that
// `auto` would choose if those before it did not exist; the first is its plan. Of plans of one scheme with
// equal effects and demands only the best is listed. `staged`: the same links as `cluster`, with what messages of plans
// take that average gains (averages_gains()), where that is something else; those are planned for it and judged by it. `overheads`: how
// plans are simulated.
// Errors: as make_plan(). O(one planning of `auto`).
RankedPlans ranked_plans(const Workload& workload, const Cluster& cluster, const SchemeOptions& options,
                         const Cluster* staged = nullptr, const SimulationOptions& overheads = {});

// Returns what option `allow` of `options`, which the caller owes of scheme `auto`, lets a plan do. O(1).
std::vector<Effect> allowed_effects(const SchemeOptions& options);

}  // namespace gradweave
