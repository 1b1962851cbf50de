// Which plan a job runs: from its profile, its links, what it asked for, what its loop does and what its gradients show.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/costs.h"
#include "control/loop.h"
#include "gradweave/estimate.h"
#include "gradweave/plan.h"
#include "gradweave/ranked_plans.h"
#include "gradweave/simulate.h"
#include "gradweave/workload.h"

namespace gradweave::control {

// The plan that runs while nothing is measured yet: no op disturbs the backward that is profiled.
inline constexpr const char* kStarter = "sequential";

// A job's links before anything is measured: names, of two levels those between nodes and inside.
struct JobLinks {
  std::vector<std::string> links;
  std::vector<std::string> inside = {};
  int workers_per_node = 1;
};

// What a job asks for.
struct Request {
  std::string scheme{kAuto};
  std::map<std::string, std::string> options;
};

// Returns what the engine can't run of a plan, with the remedy, "" if it can. Called from any thread.
using Unrunnable = std::function<std::string(const Plan&, const Workload&)>;

// What the first iterations have shown of the gradients.
struct GradientsSeen {
  GradientEstimates estimates;
  std::optional<StepRule> rule;  // what the optimizer does; nothing if that is not known

  // Returns how far an iteration of the plan gets beside one of plain training.
  double progress(const Plan& plan, const Workload& workload) const;
  // Returns why the plan should not be used, "" if nothing speaks against it.
  std::string objection(const Plan& plan, const Workload& workload) const;
};

// A plan that may come into force.
struct Candidate {
  std::string scheme;  // that made it: of `auto` the one that it chose
  Plan plan;
  SimulationResult prediction;
};

struct Decision {
  Workload workload;
  Costs costs;
  // Plans that the engine, the loop and the gradients support, best first. Of scheme `auto` the starter is last.
  std::vector<Candidate> candidates;
  std::string error;                        // why there is none
  std::string passed_over;                  // why the best plan of all isn't among them
  std::string objection;                    // to the best one, where its scheme was asked for by name
  std::optional<PlanSummary> if_corrected;  // what corrected averages would give, where that is another
  std::optional<double> ddp_ns;             // an iteration of `ddp` here, simulated
  bool takes_back = false;  // the plan in force has proved slower than the one before, which is the first
};

// Whether gradients have to say if training supports plans with such an effect.
constexpr bool has_to_be_seen(Effect effect) {
  return effect == Effect::kDelayed || effect == Effect::kLocal || effect == Effect::kCorrected;
}

// What a decision rests on besides times.
struct Grounds {
  Request request;
  Loop loop;
  std::optional<GradientsSeen> gradients;
  // Gradients are compared in this job, and too few were: `auto` takes no plan that they have to support.
  bool unseen = false;
  Unrunnable unrunnable;
  int candidates = 4;  // wanted, at most: should one not come into force the next is tried
};

// Returns the decision for these times. Throws nothing: `error` has what went wrong, since other ranks wait for it. Takes as
// long as the schemes take to plan.
Decision decide(const Workload& workload, const Costs& costs, const Grounds& grounds);

// Returns the candidate of a plan that is known already. Errors: those of simulate().
Candidate candidate_of(const Plan& plan, const Workload& workload, const Costs& costs);

// Returns the time that a candidate takes to get as far as plain training in an iteration, ns.
double time_to_progress(const Candidate& candidate, const Workload& workload,
                        const std::optional<GradientsSeen>& gradients);

// Returns the order in which the rule by which `auto` chooses takes plans with these times, which stand in order of
// preference (ranked_plans.h): places in `times`. O(n^2).
std::vector<std::size_t> order_within(std::span<const double> times, double tolerance);

// Returns the starter's plan. Errors: those of make_plan().
Plan starter(const Workload& workload, const JobLinks& links, int workers);

// Whether the plan of a scheme that was asked for by name will average what parameters have gained, as far as that can be known
// before a profile; of `auto`, whether it may take a plan that does.
bool may_average_gains(const Request& request, const Workload& unprofiled, const JobLinks& links,
                       int workers);

// Returns what the plan of a scheme that was asked for by name will ask of the loop, as far as that can be known before a
// profile; nothing if it can't, or of `auto`, which takes what the loop supports.
std::optional<Demands> expected_demands(const Request& request, const Workload& unprofiled,
                                        const JobLinks& links, int workers);

// Throws InvalidInput if the engine can't run what the options of a scheme that was asked for by name say of compressors and
// outer optimizers, or, of two levels of links, the scheme itself, as far as that shows before a profile. `tensors`: the
// model's. `workers_per_node`: 1: of one level. O(the model's element types).
void check_runs(const Request& request, const std::vector<Tensor>& tensors, int workers, int workers_per_node,
                const Unrunnable& unrunnable);

// Returns the decision as one text, and back: of what all ranks need, workload, costs, plans and error, without the
// predictions. Errors: InvalidInput for a text that isn't one.
std::string to_text(const Decision& decision);
Decision decision_of(const std::string& text);

}  // namespace gradweave::control
