// What training by a plan shows: how long its ops and layers really take, who is waited for, whether that has changed,
// and which workload and cluster to plan for from now on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradweave/cluster.h"
#include "gradweave/iteration_statistics.h"
#include "gradweave/plan.h"
#include "gradweave/simulate.h"
#include "gradweave/workload.h"

namespace gradweave {

// Whether a sequence of measurements of one quantity, logarithms of times, has moved. The last two, three, ... up to
// eight are compared by Student's t for the difference of two means with those before them, at least two and at most 64,
// but for the one between, in which the change may have happened; they have to be alike. How far measurements scatter is
// estimated from those before, to which ten degrees of freedom with a standard deviation of 0.05 are added: a few that
// happen to be alike prove nothing. Where errors are normal and independent, and no larger than that or enough have
// been seen, false alarms are rarer than `chance` per measurement.
class ChangeTest {
 public:
  explicit ChangeTest(double chance) : chance_(chance) {}
  // Takes the next measurement. Returns whether the last ones differ from those before, which are then forgotten.
  bool add(double value);
  // Forgets all but the last two.
  void keep_last();
  // Returns the mean of all that count; 0 before there is one.
  double mean() const;
  // Returns half of the 95 % confidence interval of the mean; infinite below two measurements.
  double uncertainty() const;
  std::size_t size() const { return values_.size(); }

 private:
  double chance_;
  std::vector<double> values_;
};

// By link: what a message of always the same size takes, ns.
using EchoTimes = std::map<std::string, double>;

// What statistics of a plan in force say of the workload and the cluster that it was made for.
class Observer {
 public:
  // `false_alarms`: per sample, of any quantity. `of_this_run`: workload and cluster were observed under another plan,
  // not measured before; `usual`: the usual() of then; `overheads`: how the plan is simulated. Errors: those of simulate() for what does
  // not fit together.
  Observer(const Plan& plan, const Workload& workload, const Cluster& cluster, double false_alarms,
           bool of_this_run = false, const EchoTimes& usual = {}, const SimulationOptions& overheads = {});
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  // Returns the names of the cluster's links that the plan gives no op.
  std::vector<std::string> idle() const;
  // Returns what an echo takes, in ns, on links whose costs are those of cluster(), for the observer of the next plan.
  EchoTimes usual() const;

  // Takes a sample of all ranks. `echo_ns`: what one message of always the same size took on each idle link; 0, or no
  // entries at all, where there was none. Returns whether to plan again, that is if
  // - a link or the compute has changed; or
  // - 2, 6, 14, ... samples after the start or a change, a time is more than a tenth off what was planned for last, or
  //   more than a half if that was observed under another plan.
  // O(ops of the sample).
  bool add(const IterationStatistics& sample, const std::vector<double>& echo_ns = {});
  bool sampled() const;
  // Returns the measured time of an iteration, of the last two samples. The caller owes one.
  double iteration_ns() const;

  // Return what to plan for, from the samples since the last change.
  // - A link that serves one op at a time: its start-up and its time per byte are fitted one by one if its messages differ in
  //   size. Else both change by one factor.
  // - A link whose ops share it: the change is counted from its first sample. Below a half both change by one factor.
  // - An idle link: the change is counted from its first four samples. Below a half it counts as none.
  Workload workload() const;
  Cluster cluster() const;

  // What was measured beside what was predicted.
  struct Difference {
    std::string
        what;  // "forward", "backward of layer 'conv1'", "op 'all_reduce a' on link eth0", "the rest: ..."
    double predicted_ns = 0, measured_ns = 0;  // of an iteration; of one op
  };
  struct Report {
    SimulationResult predicted;  // its compute includes what messages take of it
    double iteration_ns = 0, exposed_ns = 0, forward_ns = 0, backward_ns = 0;  // measured, the last sample
    // Communication over backward compute (COVAP's CCR), measured: mean and half of its 95 % confidence interval.
    double ccr = 0, ccr_uncertainty = 0;
    struct OfLink {
      std::string link;
      double factor = 1, uncertainty = 0;  // measured over predicted times of ops, relative half interval
    };
    std::vector<OfLink> links;            // those that the plan uses
    std::vector<Difference> differences;  // parts of an iteration, the largest first
    Difference op;                        // that is off by most in an iteration
    struct Straggler {
      std::size_t rank = 0;
      double factor = 1;  // its compute over the median rank's
    };
    std::vector<Straggler> stragglers;  // those that compute a tenth longer, the slowest first
  };
  // The caller owes a sample before.
  Report report() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// When to plan again beside the training, and when a plan makes way for the one before it. Plans are made for what was
// measured and come into force because they are predicted to be faster. O(1).
class Replanning {
 public:
  enum class Step { kNone, kPlan, kTakeBack };
  // A plan has come into force. `before_ns`: what an iteration took under the plan that it replaces, if it is thought to
  // be faster than that; else 0.
  void installed(double before_ns);
  // A sample has ended. `changed`: what Observer::add() returned; `planning`: a plan is being made; `proposed`: one has
  // been made and will come into force. Returns what to do now: plan for what was measured; or put the plan before into
  // force again, the one that replaced it having proved slower, which is found out three samples after it came. Measurements
  // of so little time may be wrong: 6, 12, 24, ... samples after that a plan is made anew.
  Step sampled(bool changed, double iteration_ns, bool planning, bool proposed);
  // The plan that was made is no better: the next one comes 2, 4, 8, ..., at most 64 samples later.
  void no_better();

 private:
  std::int64_t samples_ = 0;  // since the plan came into force
  bool changed_ = false;      // since the last plan was made
  std::int64_t not_before_ = 0, wait_ = 1;
  std::int64_t anew_ = 0,
               setbacks_ = 0;  // the sample at which to plan whatever has changed; plans taken back
  bool taking_back_ = false;
  double before_ns_ = 0;
};

// Returns the report for people, a line for each finding.
std::string to_text(const Observer::Report& report);

}  // namespace gradweave
