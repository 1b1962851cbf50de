// Ranks of a job's control without a network, an engine or a clock: ranks are threads of which one runs at a time, in an
// order that a seed chooses, time passes where all of them wait, and any command can fail.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "control/controller.h"

namespace gradweave::testing {

using control::Time;

inline constexpr Time kTimeout = std::chrono::seconds(300);

class World {
 public:
  World(int ranks, std::uint32_t seed) : ranks_(static_cast<std::size_t>(ranks)), random_(seed) {}

  // Runs `body` as each rank and returns once all have ended. What a rank throws ends it; the others are told when they wait.
  void run(const std::function<void(int)>& body);

  int size() const { return static_cast<int>(ranks_.size()); }
  // What ended the rank, "" if nothing did.
  const std::string& error(int rank) const { return at(rank).error; }

  // ---- of a running rank

  // Another rank may go on.
  void pause(int rank);
  void sleep(int rank, Time time);
  // The rank does nothing any more; it is unwound once all others have ended.
  [[noreturn]] void hang(int rank);
  // A collective: every rank's n-th call has to be of the same `what`. post() begins it and returns its number.
  std::size_t post(int rank, const std::string& what, const std::string& text);
  std::vector<std::string> wait(int rank, std::size_t number);
  Time now(int rank);

 private:
  enum class State : std::uint8_t { kReady, kSleeps, kWaits, kHangs, kEnded };
  struct Rank {
    State state = State::kReady;
    Time until{};           // kSleeps: its end; kWaits: the timeout
    std::size_t waits = 0;  // kWaits: for this collective
    std::vector<std::pair<std::string, std::string>> posts;
    std::string error;
    bool unwound = false;
  };
  struct Unwound {};

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  bool complete(std::size_t number) const;
  void check_alike(std::size_t number);
  // Gives the turn to a rank that can go on; lets time pass if none can.
  void choose();
  void give_up_turn(std::unique_lock<std::mutex>& lock, int rank);
  void pass_time();

  std::mutex mutex_;
  std::condition_variable turn_changed_;
  int turn_ = -1;
  Time now_{};
  std::string verdict_;
  std::vector<Rank> ranks_;
  std::mt19937 random_;
};

enum class Fault : std::uint8_t {
  kNone,
  kRefuses,  // can't put the plan into force, and says so
  kThrows,   // an exception that nobody expects
  kHangs,    // never comes
  kIsLate    // by less than the timeout
};

// What a fake job computes and over which links, and what fails: the command with this number, from 0, of this rank.
struct Setting {
  Workload workload;
  Cluster cluster;  // as it really is
  int faulty_rank = -1;
  std::int64_t faulty_command = -1;
  Fault fault = Fault::kNone;
  std::string plan_to_refuse;                    // by the faulty rank: of this scheme, always
  SimulationOptions takes{.plan_facts = false};  // what plans take besides, which nobody knows
  SimulationOptions overheads = {};              // what the job measures of that
  // Of each iteration. The workers' data differ.
  GradientSums gradients{.own = 2, .mean = 1, .own_change = 2, .mean_change = 1, .step = 1};
  bool unprofiled = false;       // no iteration of the profile is one
  std::int64_t not_finite = -1;  // the iteration of whose gradients rank 1 has one that isn't
};

// Four layers of 1 and 2 ms with a tensor of 80 kB each.
Workload four_layers();

class FakeJob : public control::Job {
 public:
  // Both must outlive the job.
  FakeJob(World& world, const Setting& setting, int rank) : world_(world), setting_(setting), rank_(rank) {}

  int rank() const { return rank_; }
  bool decides() const override { return rank_ == 0; }
  int size() const override { return world_.size(); }
  Time now() override { return world_.now(rank_); }
  std::vector<std::string> gather(const std::string& what, const std::string& text) override;
  std::vector<double> largest(const std::string& what, const std::vector<double>& values) override;
  std::vector<double> means(const std::string& what, const std::vector<double>& values) override;
  std::unique_ptr<Exchange> begin_smallest(const std::string& what,
                                           const std::vector<double>& values) override;
  void drain(const std::string& what) override;
  std::string install(const Plan& plan, const Workload& workload) override;
  void begin_profile(int /*iterations*/) override { command(); }
  run::LayerTimes end_profile() override;
  void drop_profile() override { command(); }
  void look_at_optimizers() override { command(); }
  control::Costs measure(const Workload& workload) override;
  IterationStatistics statistics(std::int64_t iterations, bool wait) override;
  std::vector<double> iteration_ns(std::int64_t most) override {
    return std::vector<double>(static_cast<std::size_t>(most), simulated_ns());
  }
  std::vector<double> take_iteration_ns(bool wait) override {
    return wait ? std::vector<double>() : std::vector{simulated_ns()};
  }
  void echo_on(const std::vector<std::string>& links) override { echoing_ = links.size(); }
  void start_echoes() override {}
  std::vector<double> echo_ns() override { return std::vector<double>(echoing_, 0.0); }
  void compare_gradients(const std::vector<std::string>& late) override;
  std::vector<GradientSums> compared_gradients() override;
  std::optional<StepRule> step_rule() override { return StepRule{}; }
  double learning_rate() override { return 0.1; }
  void tell(const std::string& line) override { told.push_back(line); }

  // An iteration of the plan in force passes.
  void iterate();
  // So many of the commands that can fail were given.
  std::int64_t commands() const { return commands_; }

  std::vector<std::string> told;
  std::vector<std::string> installed;  // schemes of plans that came into force, in order

 private:
  // Returns whether the rank refuses.
  bool command();
  double simulated_ns();

  World& world_;
  const Setting& setting_;
  int rank_;
  std::int64_t commands_ = 0, iterations_ = 0, installed_at_ = 0, compared_from_ = -1;
  std::size_t echoing_ = 0;
  std::optional<Plan> plan_;
  Cluster timed_;  // that times_ are of
  std::optional<double> iteration_ns_;
};

}  // namespace gradweave::testing
