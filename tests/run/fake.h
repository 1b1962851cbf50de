// Ranks of a run without tensors and networks: gradients and parameters are vectors of doubles, ranks are
// threads, and links finish ops after random delays in any order; or they return at once, as those of accelerators do.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "run/channel.h"
#include "run/fake_device.h"
#include "run/host.h"
#include "run/peers.h"
#include "run/run.h"

namespace gradweave::testing {

using Values = std::vector<double>;

// What a job computes, known to the ranks and to the reference: the gradient of a tensor on a rank in an
// iteration, which depends on the parameters that it is computed with; whether the rank uses the tensor at
// all; and what ranks do besides.
struct Job {
  std::uint32_t seed = 1;
  int world_size = 2;
  bool leaves_unused = false;   // some tensors are unused on some ranks in some iterations
  bool reorders = true;         // some forwards run two layers the other way round than the plan has them
  bool accumulates = false;     // some iterations have a backward that is not communicated before
  double spoilt = 0;            // probability of a gradient that is not finite, which ranks have to leave out
  double dropped = 0;           // probability that the caller drops a batch
  int not_finite_rank = -1;     // whose gradient in iteration 2 is not finite, to be found by a check
  bool broken_threads = false;  // of the links: they fail in their first line
  std::int64_t resumed_after = -1;  // iterations, after which all goes on from a checkpoint, on other links
  bool one_program = false;         // ranks use the same tensors and layers, in the same order
  // Links return at once, into one queue of the rank's device; the loop puts collectives of its own there at any point, of which
  // it awaits some. Only for ranks that run one program and drop nothing.
  bool at_once = false;

  bool used(int rank, std::int64_t iteration, std::int32_t tensor) const;
  bool accumulates_in(std::int64_t iteration) const;
  bool overflows(int rank, std::int64_t iteration) const;
  // 0: no. 1: by skip(). 2: by taking the gradients away before the step. 3: and then no step.
  int drops(std::int64_t iteration) const;
  // `pass`: of the iteration, 0 if nothing was accumulated before.
  Values gradient(int rank, std::int64_t iteration, int pass, std::int32_t tensor,
                  const Values& parameter) const;
};

// Steps elements [begin, end) of a tensor: momentum, so that a step that is left out and a step on zeros differ.
void step_elements(Values& parameter, Values& momentum, const Values& gradient, std::int64_t begin,
                   std::int64_t end);

// Those that take part in an op, sorted.
using Ranks = std::vector<int>;
Ranks all_ranks(int world_size);

// Joins the links of the ranks of one job.
class Network {
 public:
  Network(int world_size, std::size_t links) : world_size_(world_size), ops_(links) {}

  struct Contribution {
    std::string what;
    Values values;
  };
  // Waits until all of a group have contributed to op `sequence` of a link; then returns them, in the group's order. Errors:
  // std::runtime_error if they contribute to different ops, or if a rank stays away; RuntimeFailure with the verdict.
  std::vector<Contribution> meet(std::size_t link, std::size_t sequence, const Ranks& group);
  void contribute(std::size_t link, std::size_t sequence, int rank, const Ranks& group,
                  Contribution contribution);
  // Gives the others this rank's values for the exchange of that name, if it has given none.
  void bring(const std::string& name, int rank, Values values);
  // The same; then waits until all ranks have, and returns their values, by rank.
  std::vector<Values> exchange(const std::string& name, int rank, Values values);
  // A rank gives up for `verdict`: the first holds for all, is returned, and ends what waits for ranks that have not come.
  std::string give_up(const std::string& verdict);
  // Nobody comes any more: links that still wait are told at once that a rank stays away.
  void close();

 private:
  struct Meeting {
    std::map<int, Contribution> there;
  };
  // Waits until `condition`. Errors: RuntimeFailure if there is a verdict before.
  template <typename Condition>
  void await(std::unique_lock<std::mutex>& lock, Condition condition);

  int world_size_;
  std::mutex mutex_;
  std::condition_variable came_;
  bool closed_ = false;
  std::string verdict_;
  std::vector<std::map<std::pair<std::size_t, int>, Meeting>> ops_;  // by sequence, and a group's first rank
  std::map<std::string, std::map<int, Values>> exchanges_;
};

struct FakeMessage {
  Values flat, own;
  std::shared_ptr<run::Pending> under_way;  // what the device has still to do, where links return at once

  // What comes next on the device, or in a checkpoint, comes after that.
  void settle() {
    if (const auto pending = std::exchange(under_way, nullptr)) pending->wait();
  }
};

class FakeChannel : public run::Channel {
 public:
  // What all links of a rank launched, in order: (iteration, place).
  struct Launches {
    std::mutex mutex;
    std::vector<std::pair<std::int64_t, std::int32_t>> order;
  };

  FakeChannel(Network& network, const Plan& plan, std::size_t link, int rank, const Job& job,
              std::shared_ptr<std::vector<FakeMessage>> messages, std::shared_ptr<Launches> launches,
              bool ordered, std::shared_ptr<FakeDevice> device);
  bool ordered_launches() const override { return ordered_ || device_; }
  bool returns_at_once() const override { return device_ != nullptr; }
  std::unique_ptr<Scope> enter_thread() override;
  std::unique_ptr<run::Pending> start(const run::Execution& execution, std::size_t sequence) override;

 private:
  class Started;
  Network& network_;
  std::size_t link_;
  int rank_;
  Ranks group_;
  int shard_ = 0, shards_ = 1;  // of messages, which the link carries
  bool ordered_, broken_;
  std::mt19937 random_;
  std::shared_ptr<std::vector<FakeMessage>> messages_;
  std::shared_ptr<Launches> launches_;
  std::shared_ptr<FakeDevice> device_;  // null: the link has threads
};

class FakePeers : public run::Peers {
 public:
  FakePeers(Network& network, int rank) : network_(network), rank_(rank) {}
  void outside(std::int64_t iteration) override { iteration_ = iteration; }
  void training(std::int64_t) override {}
  void set_progress(std::int64_t) override {}
  std::vector<std::string> agree(const std::string& what, const std::string& post,
                                 std::chrono::milliseconds timeout) override;
  std::string give_up(const std::string& what, std::chrono::nanoseconds, const std::string& cause) override {
    return network_.give_up(what + " failed: " + cause);
  }

 private:
  Network& network_;
  int rank_;
  std::int64_t iteration_ = 0;
  std::size_t meetings_ = 0;
};

class FakeHost : public run::Host {
 public:
  FakeHost(Network& network, int rank, const Job& job, std::shared_ptr<FakeDevice> device)
      : network_(network), rank_(rank), job_(job), device_(std::move(device)) {}

  void install(const RunPlan& plan, std::size_t slots);
  // Everything that a checkpoint holds of `other`, which runs the same plan.
  void take_over(FakeHost& other);
  const std::shared_ptr<std::vector<FakeMessage>>& messages() const { return messages_; }
  // A backward that is not communicated: adds to the gradient.
  void accumulate(std::int32_t tensor, std::int64_t iteration);
  // The forward computes with the tensor's parameter; its gradient is of what that is now.
  void forward(std::int32_t tensor) {
    forwarded_[static_cast<std::size_t>(tensor)] = parameters_[static_cast<std::size_t>(tensor)];
  }
  // The backward comes to the tensor: the gradient that the run will take.
  void compute(std::int32_t tensor, std::int64_t iteration);
  void zero_grad();
  const std::vector<Values>& parameters() const { return parameters_; }
  void change_parameter(std::int32_t tensor) { parameters_[static_cast<std::size_t>(tensor)][0] += 1; }
  void set_iteration(std::int64_t iteration) { iteration_ = iteration; }

  bool begin_backward() override;
  void take_gradient(std::int32_t tensor, run::Gradient gradient) override;
  void end_backward() override {}
  void compensate(std::int32_t block, double coefficient, bool sent) override;
  bool has_residual(std::int32_t block) const override {
    return residuals_[static_cast<std::size_t>(block)].has_value();
  }
  bool codec_began_with_residual(std::int32_t) const override { return false; }
  void restore_residuals() override;
  void leave_out(const run::Execution&) override {}
  void restart() override {}
  bool overflowed() override { return job_.overflows(rank_, iteration_); }
  std::int32_t not_finite() override { return rank_ == job_.not_finite_rank && iteration_ == 2 ? 0 : -1; }
  bool lend_gradient(const run::Execution&) override { return false; }
  void write_gradient(const run::Execution& execution, std::size_t at, bool first,
                      std::int32_t iterations) override;
  void read_parameter(const run::Execution& execution, std::size_t at) override;
  void filled(const run::Execution&) override {}
  void landed(const run::Execution& execution) override;
  void rescale(const run::Execution& execution, double factor) override;
  void retire(const run::Execution& execution) override;
  void put_gradient(std::int32_t tensor, std::span<const run::Part> parts, bool add) override;
  void drop_gradient(std::int32_t tensor) override;
  void average_parameter(const run::Part& part) override;
  void set_gradients_aside(std::span<const std::int32_t> tensors) override;
  void put_gradients_back(std::span<const std::int32_t> tensors) override;
  void step(const Stepped& stepped) override;
  run::Kept kept(std::int32_t tensor) const override {
    return gradients_[static_cast<std::size_t>(tensor)] ? run::Kept::kSame : run::Kept::kGone;
  }
  void note_parameter(std::int32_t tensor) override;
  bool parameter_changed(std::int32_t tensor) const override;
  void begin_exchange(std::size_t slot, std::span<std::uint8_t> flags) override;
  void finish_exchange(std::size_t slot) override;
  void average_over_ranks(std::span<const std::int32_t> tensors) override;

 private:
  using Gradient = std::optional<Values>;
  FakeMessage& opened(const run::Execution& execution);
  Values part_of_message(const Values& message, const run::Part& part) const;
  std::int64_t length_of(std::int32_t block) const;

  Network& network_;
  int rank_;
  Job job_;
  std::shared_ptr<FakeDevice> device_;
  const RunPlan* plan_ = nullptr;
  std::int64_t iteration_ = 0;
  std::size_t exchanged_ = 0;
  std::vector<Values> parameters_, momenta_;
  std::vector<Values> forwarded_;  // what the last forward saw
  std::map<std::int32_t, Values> noted_;
  std::vector<Gradient> gradients_, aside_;
  std::vector<Gradient> residuals_, residuals_before_;  // by block
  Gradient taken_, compensated_;
  std::int32_t compensated_block_ = -1;
  std::shared_ptr<std::vector<FakeMessage>> messages_;
  struct Exchange {
    std::size_t number = 0;
    Values mine;
    std::span<std::uint8_t> flags;
  };
  std::map<std::size_t, Exchange> exchanges_;
};

// What became of a job: errors by rank, or, after the last drain, each rank's parameters.
struct Outcome {
  std::vector<std::string> errors;              // by rank, "" if there was none
  std::vector<std::vector<Values>> parameters;  // by rank, by tensor
  std::vector<std::vector<std::pair<std::int64_t, std::int32_t>>> launches;
  std::vector<run::Counters> counters;
};
// Trains and drains, once for each of `stops` (iterations since the one before). `after`: what each rank does
// after each of its iterations.
Outcome train(const Plan& plan, const Workload& workload, const Job& job,
              const std::vector<std::int64_t>& stops, bool ordered_launches = false,
              const std::function<void(FakeHost&, std::int64_t iteration)>& after = nullptr);

}  // namespace gradweave::testing
