// What every face of a job's controller has done alike: by the engine, the other ranks and this machine's clock.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "control/decision.h"
#include "control/job.h"
#include "runtime/control_group.h"
#include "runtime/echo.h"
#include "runtime/engine.h"
#include "runtime/gradient_comparison.h"
#include "runtime/peers.h"

namespace gradweave::runtime {

class EngineJob : public control::Job {
 public:
  // `engine` must outlive the job. `peers`, `messages`: of the ranks that have one plan; `rank`, `size`: among those that train
  // alike; `timeout`: of ranks that meet.
  EngineJob(Engine& engine, std::shared_ptr<Peers> peers, std::shared_ptr<ControlGroup> messages, int rank,
            int size, bool decides, std::chrono::milliseconds timeout)
      : engine_(engine),
        peers_(std::move(peers)),
        messages_(std::move(messages)),
        rank_(rank),
        size_(size),
        decides_(decides),
        timeout_(timeout),
        comparison_(engine) {}

  bool decides() const override { return decides_; }
  int size() const override { return size_; }
  control::Time now() override { return std::chrono::steady_clock::now().time_since_epoch(); }
  std::vector<std::string> gather(const std::string& what, const std::string& text) override {
    return peers_->agree(what, text, timeout_);
  }
  std::vector<double> largest(const std::string& what, const std::vector<double>& values) override {
    return messages_->largest(values, what);
  }
  std::vector<double> means(const std::string& what, const std::vector<double>& values) override {
    return messages_->means(values, what);
  }
  std::unique_ptr<Exchange> begin_smallest(const std::string& what,
                                           const std::vector<double>& values) override;
  void drain(const std::string& what) override { engine_.drain(what); }
  IterationStatistics statistics(std::int64_t iterations, bool wait) override {
    return engine_.run(&run::Run::statistics, iterations, static_cast<std::size_t>(rank_), wait);
  }
  std::int64_t behind() override { return engine_.run(&run::Run::behind); }
  std::vector<double> iteration_ns(std::int64_t most) override {
    return engine_.run(&run::Run::iteration_ns, most);
  }
  std::vector<double> take_iteration_ns(bool wait) override {
    return engine_.run(&run::Run::take_iteration_ns, wait);
  }
  void begin_profile(int iterations) override;
  run::LayerTimes end_profile() override;
  void drop_profile() override { profiles(false); }
  void echo_on(const std::vector<std::string>& links) override;
  void start_echoes() override;
  std::vector<double> echo_ns() override;
  void compare_gradients(const std::vector<std::string>& late) override { comparison_.compare(late); }
  std::vector<GradientSums> compared_gradients() override { return comparison_.compared(); }
  double learning_rate() override;

  // Returns what the job's links cost, each measured for so many seconds where that isn't given, and how fast compressors are
  // that plans by this scheme with these options may use. Of a scheme by name that averages gains what those cost. Collective.
  control::Costs measured(const Workload& workload, const std::string& scheme,
                          const std::map<std::string, std::string>& options, double seconds) const;

  // ---- what the face does in particular

  // Every layer's forward_start() has to come from now on; or only those that the plan needs.
  virtual void profiles(bool on) = 0;

  // Whether backward_ended() is wanted.
  bool comparing() const { return comparison_.comparing(); }
  // A communicated backward has ended; the optimizer has stepped.
  void backward_ended();
  void optimizer_stepped();
  // Return, by parameter, its learning rate, 0 where it is stepped by nobody; and what the last step was.
  virtual std::vector<double> learning_rates() = 0;
  virtual OptimizerMoments moments() = 0;

 private:
  Engine& engine_;
  std::shared_ptr<Peers> peers_;
  std::shared_ptr<ControlGroup> messages_;
  int rank_, size_;
  bool decides_;
  std::chrono::milliseconds timeout_;
  std::vector<Echo> echoes_;
  GradientComparison comparison_;
};

// Returns what the engine can't run of a plan, "" if it can, among so many ranks with parameters on `device`.
control::Unrunnable unrunnable_on(int size, c10::Device device);

}  // namespace gradweave::runtime
