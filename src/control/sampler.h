// Samples of what the plan in force takes, which ranks exchange beside the training.
#pragma once

#include <cstdint>
#include <memory>

#include "control/job.h"
#include "gradweave/observe.h"

namespace gradweave::control {

// Of one rank. Every rank's is called alike.
class Sampler {
 public:
  explicit Sampler(Job& job) : job_(job) {}

  // Nothing is sampled: it is not known what the plan in force should take.
  void stop();
  // A plan has come into force that is predicted to take so long an iteration; the rest is as for Observer. `echoes`: go round
  // on the links that it leaves idle.
  void start(const Plan& plan, const Workload& workload, const Costs& costs, double iteration_ns,
             bool of_this_run, const EchoTimes& usual, bool echoes);
  bool started() const { return observer_ != nullptr; }
  // The caller owes a start.
  const Observer& observer() const { return *observer_; }

  // An iteration has ended. Returns what is due now, alike on all ranks: exchange() or end_exchange().
  enum class Due : std::uint8_t { kNothing, kExchange, kEnd };
  Due iteration_ended();
  // Begins to exchange a sample, and whether this rank announces a plan.
  void exchange(bool announces);
  bool exchanging() const { return exchange_ != nullptr; }
  // Waits for the exchange, and takes the sample in, unless some rank's host is too far ahead of its device.
  struct Ended {
    bool taken = false;
    bool changed = false;    // Observer::add()
    bool announced = false;  // some rank has announced a plan
  };
  Ended end_exchange();
  void drop_exchange() { exchange_.reset(); }

  // Takes one more sample, if there is one. Returns whether something has changed. Collective, while no exchange is under way.
  bool sample_now();

 private:
  void choose_interval(double seconds);

  Job& job_;
  std::unique_ptr<Observer> observer_;
  std::int64_t every_ = 0, iterations_ = 0;  // between samples; since the last
  IterationStatistics sample_;               // whose exchange is under way
  std::unique_ptr<Job::Exchange> exchange_;
  bool echoing_ = false;
};

}  // namespace gradweave::control
