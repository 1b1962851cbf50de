// The engine: runs any valid plan in a training job. docs/runtime.md follows one gradient through it.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "gradweave/plan.h"
#include "gradweave/timeline.h"
#include "gradweave/workload.h"
#include "plan/calendar.h"
#include "runtime/buffers.h"
#include "runtime/hooks.h"
#include "runtime/links.h"
#include "runtime/peers.h"

namespace gradweave::runtime {

// Whether ranks tell each other in each iteration which parameters had a gradient, so that what no rank used
// is not stepped. kAuto: only if the first iteration of a plan leaves some parameter unused on some rank.
enum class FindUnused : std::uint8_t { kAuto, kOn, kOff };

struct EngineOptions {
  LinkOptions link;
  FindUnused find_unused = FindUnused::kAuto;
};

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

struct Counters {
  std::int64_t iterations = 0, updates = 0;
  std::int64_t ops = 0, bytes = 0;
  std::int64_t exposed_ns = 0, waits = 0;
  std::int64_t buffer_bytes = 0;  // held by the engine's buffers
};

// One rank's engine. The training thread calls it (autograd threads while the training thread is in
// backward); links have threads of their own. No call holds Python's lock while it waits. Errors:
// InvalidInput for what the caller can change; RuntimeFailure once a peer or a link is lost, and from then
// on.
class Engine {
 public:
  // Runs the optimizer on the parameters of a subset(); every listed parameter has its gradient in place.
  using Stepper = std::function<void(std::int32_t)>;
  // Returns the factor that takes the loss scale out of the gradients of the backward that begins, a float32
  // tensor of one element on the parameters' device; undefined if they have none.
  using Unscaler = std::function<at::Tensor()>;

  // `links`: one per link that a plan may name. `control`: a group for small CPU messages, null with one
  // rank. `peers`: of these ranks, also used by the caller.
  Engine(std::vector<NamedParameter> parameters, std::vector<LinkSpec> links,
         c10::intrusive_ptr<c10d::ProcessGroup> control, std::shared_ptr<Peers> peers, int rank,
         int world_size, EngineOptions options, Stepper stepper);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Makes `plan` the plan in force, from its iteration 0. Collective: compares it across ranks. Nothing may
  // be pending. Errors: InvalidInput if the plan is invalid, differs between ranks (naming them), or names
  // unknown links.
  void install(const Plan& plan, const Workload& workload);
  bool installed() const { return program_ != nullptr; }

  // Parameters (places in the constructor's list) of a subset; 0 is all of them.
  const std::vector<std::int32_t>& subset(std::int32_t id) const {
    return subsets_[static_cast<std::size_t>(id)];
  }

  // Points of an iteration.
  void forward_start(std::int32_t layer);
  void forward_end(std::int32_t layer);
  void backward_start();  // from a hook on the model's output
  // Whether a backward was communicated since the last end_iteration().
  bool reduced() const { return phase_ == Phase::kReduced; }
  // The user's optimizer.step(): applies what the plan applies at iteration_end and begins the next
  // iteration.
  void end_iteration();

  // Off: gradients accumulate and nothing is communicated.
  void set_communicating(bool on) { communicating_ = on; }
  bool communicating() const { return communicating_; }

  // Applies everything that is on its way, then averages parameters that ranks stepped on their own; the plan
  // goes on from its iteration 0. Collective: ranks meet in `what` first ("finish()"), since they would run
  // other ops after other iterations. Between iterations only.
  void drain(const std::string& what);
  // Applies what the coming forward would, and waits for the ops that can run. Safe on one rank alone.
  void synchronize();
  // Releases hooks, links and groups. Idempotent. Waits for the ops that run, unless `abandon`: after an
  // error of this rank's own nobody will run their other ends.
  void close(bool abandon = false);

  // With a loss scale, plans that do not apply everything at the end of its own iteration take it out where a
  // gradient is handed over, since a generation may hold gradients of several scales. If a gradient of some
  // rank was not finite, nothing that holds it is applied, on any rank. Null: no scale.
  void set_unscaler(Unscaler unscaler) { unscaler_ = std::move(unscaler); }
  // Whether some rank's gradient of the last backward was not finite, the same on all ranks.
  bool overflowed() const { return iteration_overflowed(iteration_); }

  // By parameter, the parts of the gradient that the coming update will use, for changes in place; empty
  // where it has none. Waits for them. Errors: InvalidInput without a backward before, or if the plan sends
  // some of it only in the next iteration.
  std::vector<std::vector<at::Tensor>> coming_gradients();

  // Ends training for all ranks because `what` failed for `cause`, `after` it began, as a lost op does:
  // RuntimeFailure with the suspects, which the other ranks get too.
  [[noreturn]] void fail(const std::string& what, Clock::duration after, const std::string& cause);

  // Layers whose forward_start or forward_end the plan needs.
  std::vector<std::int32_t> forward_layers() const;
  // Whether some step is of a part of the parameters, or elsewhere than at iteration_end.
  bool partial_steps() const { return partial_steps_; }
  // Whether some parameters are stepped in the backward, before every gradient of the iteration is known.
  bool steps_in_backward() const { return steps_in_backward_; }
  // Whether some parameters are stepped in the forward.
  bool steps_in_forward() const { return steps_in_forward_; }
  // Whether every iteration applies exactly its own gradients at its end.
  bool synchronous() const { return synchronous_; }
  // When each parameter's gradient was complete in the last backward, steady clock, ns.
  const std::vector<std::int64_t>& ready_ns() const { return ready_ns_; }
  std::int64_t backward_end_ns() const { return backward_end_ns_; }
  std::int64_t iteration() const { return base_ + iteration_; }
  Counters counters() const;
  void set_timeline(bool on);
  // Returns what was recorded since the last call. Empty unless the timeline is on.
  Timeline take_timeline();

 private:
  enum class Phase : std::uint8_t { kIdle, kBackward, kReduced };
  struct Used {
    at::Tensor flags;  // uint8: one per tensor, some unused, overflow; after `work`, of all ranks
    c10::intrusive_ptr<c10d::Work> work;
    bool overflow = false;
  };
  // Updates also take place in the caller's forward, but not in its modes.
  struct PlainMode {
    c10::InferenceMode inference{false};
    c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
  };

  // engine.cc: points and applies
  void on_gradient(std::int32_t parameter);
  void enter_backward();
  void finish_backward();
  void pass(PointKind kind, std::int32_t layer);
  void complete_layer_of(std::int32_t tensor);
  void apply_reduced(const CalendarApply& apply);
  void apply_average(const CalendarApply& apply);
  void install_gradient(const CalendarApply& apply, std::size_t place);
  void run_optimizer(const std::vector<std::int32_t>& tensors);
  void apply_outside_end(const CalendarApply& apply);
  void advance();
  void begin_iteration();
  void push_ops(std::int64_t iteration);
  void wait_for(OpRun& run, std::int32_t layer);
  void check_failure() const;
  void apply_forward(std::int32_t layer);
  void check_unchanged(const CalendarIteration& here);

  // delivery.cc: gradients and parameters into messages
  void deliver(std::int32_t tensor, const at::Tensor& gradient);
  void deliver_block(std::int32_t block, const at::Tensor& gradient);
  void write_block(OpRun& run, std::int32_t block, std::int64_t offset, const at::Tensor& part);
  bool deliver_in_place(OpRun& run, std::int32_t tensor, const at::Tensor& gradient);
  at::Tensor with_residual(std::int32_t block, const at::Tensor& part, bool sent);
  void read_parameters(PointKind at, std::int32_t layer);
  void read_parameters(OpRun& run, PointKind at, std::int32_t layer);
  bool stepped_at_backward_end(std::int32_t tensor, std::int32_t layer) const;
  void retire(std::int64_t iteration);
  void release_retired();
  at::Tensor flat_gradient(std::int32_t tensor) const;
  at::Tensor flat_parameter(std::int32_t tensor) const;
  void exchange_used();
  bool used(const CalendarApply& apply, std::int32_t tensor);
  void wait_for_flags(Used& used);

  // scaling.cc: loss scales
  void begin_unscaling();
  void end_unscaling();
  void unscale(const at::Tensor& gradient);
  bool scaled() const { return inverse_scale_.defined(); }
  bool iteration_overflowed(std::int64_t iteration) const;
  bool holds_overflow(const CalendarApply& apply) const;
  bool drop_overflowed(const std::vector<std::int32_t>& tensors);
  void start_early(std::int32_t op);

  // lifecycle.cc: plans come into force
  void check_same_plan(const std::string& hash);
  void set_step_points();
  void reset_runs();
  void prepare(std::int64_t iteration);
  void drop_links();
  std::int32_t subset_id(const std::vector<std::int32_t>& tensors);

  // drain.cc
  void cut(OpRun& run, std::int64_t end);
  void drain_iteration(std::int64_t iteration, std::int64_t end);
  void average_parameters();

  OpRun& run_at(std::int64_t iteration, std::int32_t op) {
    return runs_[static_cast<std::size_t>(iteration) % runs_.size()][static_cast<std::size_t>(op)];
  }
  at::Tensor& parameter(std::int32_t tensor) {
    return parameters_[static_cast<std::size_t>(parameter_of_[static_cast<std::size_t>(tensor)])].tensor;
  }
  const at::Tensor& parameter(std::int32_t tensor) const {
    return parameters_[static_cast<std::size_t>(parameter_of_[static_cast<std::size_t>(tensor)])].tensor;
  }
  std::optional<Clock::time_point> released_at(const OpRun& run) const;
  std::string describe(const OpRun& run) const;

  std::vector<NamedParameter> parameters_;
  std::vector<LinkSpec> specs_;
  c10::intrusive_ptr<c10d::ProcessGroup> control_;
  int rank_, world_size_;
  EngineOptions options_;
  Stepper stepper_;
  Unscaler unscaler_;
  std::shared_ptr<Peers> peers_;
  std::shared_ptr<std::atomic<std::int64_t>> progress_ = std::make_shared<std::atomic<std::int64_t>>(0);
  std::unique_ptr<GradientHooks> hooks_;
  at::Tensor scale_;  // 1 / world size, a wrapped number: rounds as DistributedDataParallel's does

  // Of the plan in force.
  std::unique_ptr<Calendar> program_;
  std::unique_ptr<BufferPool> pool_;
  std::shared_ptr<Exchange> exchange_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::int32_t> parameter_of_;  // by tensor
  std::vector<std::int32_t> tensor_of_;     // by parameter
  std::vector<std::vector<std::int32_t>> subsets_;
  std::map<std::vector<std::int32_t>, std::int32_t> subset_ids_;
  bool partial_steps_ = false, steps_in_backward_ = false, steps_in_forward_ = false, synchronous_ = false;

  // Of the run.
  std::int64_t iteration_ = 0;  // of the plan, the one that is being computed
  std::int64_t base_ = 0;       // iterations before the plan was put in force
  Phase phase_ = Phase::kIdle;
  bool communicating_ = true;
  bool armed_ = false;
  int armed_task_ = -1;                       // the backward whose end calls back
  std::int64_t prepared_ = -1, pushed_ = -1;  // iterations up to which ops are ready, and handed to links
  bool draining_ = false;
  std::int64_t drain_end_ = 0;  // while draining: the first iteration that does not exist
  FindUnused find_unused_ = FindUnused::kAuto;
  std::vector<std::vector<OpRun>> runs_;  // ring by iteration
  std::vector<Used> used_;                // ring by iteration
  std::vector<std::uint8_t> ready_;       // by tensor: delivered in this backward
  std::vector<std::uint8_t> touched_;     // by tensor: accumulated without communication
  struct Handed {
    const void* data = nullptr;
    std::int64_t version = 0;
  };
  std::vector<Handed> handed_;                // by tensor: .grad as it was handed over
  std::vector<std::int64_t> installed_;       // by tensor: the iteration whose update is in .grad
  std::vector<std::int32_t> missing_;         // by layer: tensors still to come in this backward
  std::vector<OpRun*> completed_;             // scratch of one delivery
  std::vector<at::Tensor> residuals_;         // by block
  std::vector<at::Tensor> residuals_before_;  // with a loss scale: before this backward
  at::Tensor inverse_scale_, found_inf_;      // of this backward
  struct Retired {
    const CalendarOp* op;
    at::Tensor flat;
  };
  std::vector<Retired> retired_;
  struct Passed {
    std::int64_t iteration = -1;
    Clock::time_point at;
  };
  std::vector<Passed> passed_;  // by kind and layer; guarded by the exchange's mutex

  std::vector<std::int64_t> ready_ns_;
  std::int64_t backward_end_ns_ = 0;
  Counters counters_;
  std::vector<Span> spans_;
  std::vector<std::string> layer_names_;
  Clock::time_point span_begin_;
};

}  // namespace gradweave::runtime
