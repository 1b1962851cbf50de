// What a job tells: which plan it runs and why, what is measured and what is simulated, and at the end what was gained.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "control/decision.h"
#include "control/job.h"
#include "gradweave/tune.h"

namespace gradweave::control {

// Of one rank; only rank 0's tells.
class Telling {
 public:
  Telling(Job& job, bool on) : job_(job), on_(on && job.decides()) {}

  void iteration_ended();

  // `chosen`: the decision's candidate that is in force.
  void switched(const Decision& decision, const Candidate& chosen);
  // The caller has put a plan in force; `prediction`: nothing where it isn't known what the plan should take.
  void installed(const Plan& plan, const std::optional<SimulationResult>& prediction);
  // No iteration of the profile was one.
  void unprofiled(bool starter_stays);
  // A candidate can't come into force; another one follows.
  void refused(const Plan& plan, const std::string& refusal);
  // The Preserver objects to the plan of a scheme that was asked for by name.
  void objected(const std::string& objection);
  // It objected to the plan that was in force.
  void obeyed(const std::string& objection, const Candidate& chosen);
  // The measured times have changed, and with them the plan; the decision's last candidate is the plan before.
  void followed(const Decision& decision, const Candidate& chosen);
  // The best plan that was tried is in force.
  void tuned(const Candidate& chosen, const TuningReport& tuning);
  // `keeps`: it was to be followed, and the checkpoint doesn't hold what that takes.
  void resumed(const Plan& plan, std::int64_t iteration, bool keeps);
  void folded(int before, std::int64_t iteration);
  // Training has ended.
  void ended();

 private:
  void change_to(const Candidate& chosen);
  void take_times(bool wait);
  void tell(const std::string& line);

  Job& job_;
  bool on_;
  std::optional<Candidate> chosen_;
  std::optional<double> ddp_ns_;           // simulated for the times that the plan in force was chosen by
  std::optional<double> ddp_measured_ns_;  // once it was in force
  std::deque<double> iterations_ns_;       // of the plan in force
  int left_out_ = 0;
};

// Returns "dear with buffer_bytes 1048576", a plan's scheme with the options that were set.
std::string with_options(const Plan& plan);

}  // namespace gradweave::control
