// Tuning on the running job: the options of a scheme that are numbers, or plans of several schemes, are tried in training,
// a few iterations each, and the best plan measured is kept.
//
// L. Zhang et al., "DeAR", ICDCS 2023, section IV.B: the first sample is the default, Bayesian optimisation with
// expected improvement (xi = 0.1) suggests each next one, tens of samples at most. Y. Peng et al., "ByteScheduler",
// SOSP 2019, section 5, does the same with two sizes. J. Snoek et al., NIPS 2012, Eq. 2:
//   EI(x) = g Phi(g/s) + s phi(g/s),  g = best - mean(x) - xi
// Times are noisy: mean and s are of a Gaussian process whose noise the likelihood chooses (solve/gaussian_process.h),
// and `best` is the smallest mean at a point that was tried, not the luckiest measurement (V. Picheny et al., "A
// benchmark of kriging-based infill criteria for noisy optimization", 2013, section 2.2).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/options.h"
#include "gradweave/plan.h"
#include "gradweave/workload.h"

namespace gradweave {

inline constexpr int kLeastTrials = 2, kMostTrials = 1000;

struct TunedParameter {
  TunedRange range;
  bool integer = true;
};

// Which values to try next, and which were the best. Deterministic.
class Tuner {
 public:
  struct Trial {
    std::vector<double>
        values;  // in the order of the parameters; empty: of a start that is no point of the search
    std::vector<double> seconds;  // measured; infinite where it could not run
    bool assumed = false;         // its time is that of another trial
    double median() const;
  };

  // `start`: the values of the first trial, empty if they are not known; it may lie outside the ranges. At most
  // `trials` are measured. Then the start and what leads are measured again, by turns, until each has three measurements;
  // at most six more in all. Without parameters no values are searched for: each trial's value is its place.
  // The caller owes three parameters at most, 0 < low where a scale is logarithmic, and two trials or more; without
  // parameters one or more.
  Tuner(std::vector<TunedParameter> parameters, std::vector<double> start, int trials,
        std::uint64_t seed = 0);

  // Returns the place in trials() of what to measure now, the same until the next call of add() or assume();
  // nothing once the search has ended. O(trials^3).
  std::optional<std::size_t> next();
  // Takes the time of what next() returned: infinite if it can't run. The first one is finite.
  void add(double seconds);
  // Says what next() would measure without doing so: it costs no trial.
  void assume(double seconds);

  const std::vector<Trial>& trials() const { return trials_; }
  // Returns the place of the trial with the smallest median of its measurements, the earliest if several have it; once
  // some were measured again, of those. It is never above the start's. The caller owes a measurement.
  std::size_t best() const;

 private:
  std::optional<std::size_t> choose();
  std::vector<double> propose();
  std::vector<double> values_at(const std::vector<double>& point) const;
  std::vector<double> point_of(const std::vector<double>& values) const;
  bool tried(const std::vector<double>& values) const;
  std::size_t leader(std::size_t measurements) const;

  std::vector<TunedParameter> parameters_;
  std::vector<double> start_;
  int trials_left_, repeats_left_, assumptions_left_;
  std::uint64_t seed_;
  int spread_ = 0;  // points that were proposed without a model
  bool searching_ = true;
  std::optional<std::size_t> pending_;
  std::vector<Trial> trials_;
};

// Checks that a scheme with these options can be tuned in so many trials; of `auto` its best plans can. Errors:
// InvalidInput for another scheme without tuned options (it names those that have some), for options that exclude them, and
// for a number of trials that is not kLeastTrials to kMostTrials.
void check_tuning(const SchemeOptions& options, int trials);

// Plans of one scheme that differ in its tuned options, or plans that are given. Deterministic.
class PlanTuner {
 public:
  struct Given {
    Plan plan;
    double weight = 1;  // > 0: its times are multiplied by it before plans are compared
  };

  // `start`: a plan that is in force, made by its scheme for this workload and cluster; its options stay as they are
  // but for those that are tuned. Ranges are the registry's (OptionSpec::tuned); sizes in bytes, whose ranges are for
  // models of at least the largest, shrink in proportion with smaller models. Errors: as check_tuning(), and
  // as parse_options() for options that the plan's scheme can't read.
  PlanTuner(Workload workload, Cluster cluster, Plan start, int trials);
  // Tries these plans alone, one or more; the first is in force.
  explicit PlanTuner(std::vector<Given> plans);
  ~PlanTuner();
  PlanTuner(const PlanTuner&) = delete;
  PlanTuner& operator=(const PlanTuner&) = delete;

  // Returns the plan to measure now, null once the search has ended. Values whose plan was measured before, or that
  // have none, cost no trial. Takes as long as the scheme takes to plan.
  const Plan* next();
  // Takes the time of an iteration of what next() returned: infinite if it could not come into force.
  void add(double seconds);
  // Returns the best plan measured; the caller owes a measurement.
  const Plan& best() const;

  struct Trial {
    // As made_by() has them; of a scheme's plans only the options that are tuned.
    std::string scheme;
    std::map<std::string, std::string> options;
    std::vector<double> seconds;

    friend bool operator==(const Trial&, const Trial&) = default;
  };
  // Returns what was measured, in the order of the first measurements, the start before all; and the place of the best
  // among them.
  std::vector<Trial> trials() const;
  std::size_t best_trial() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What was tried on a running job so far.
struct TuningReport {
  std::vector<PlanTuner::Trial> trials;  // as PlanTuner::trials() returns them
  std::size_t best = 0;                  // its place among them
  bool ended = false;                    // the best one stays in force
  double seconds = 0;                    // since the start came into force

  friend bool operator==(const TuningReport&, const TuningReport&) = default;
};

}  // namespace gradweave
