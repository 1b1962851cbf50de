// Runs a plan on one rank: what is due at each point, what is read, sent, waited for and applied, and in
// which order. It knows no tensor and no network: a Host holds the data, a Channel carries each link's ops.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradweave/timeline.h"
#include "run/applies.h"
#include "run/archive.h"
#include "run/arrivals.h"
#include "run/channel.h"
#include "run/compute_thread.h"
#include "run/context.h"
#include "run/cursor.h"
#include "run/ending.h"
#include "run/flags.h"
#include "run/host.h"
#include "run/link.h"
#include "run/op_queue.h"
#include "run/outbox.h"
#include "run/peers.h"
#include "run/recorder.h"
#include "run/tables.h"
#include "run/window.h"

namespace gradweave::run {

struct RunOptions {
  OpQueueOptions queue;
  FindUnused find_unused = FindUnused::kAuto;
  bool check = false;  // ranks tell each other in each iteration whose gradients are not finite
  int world_size = 1;
};

// Errors: InvalidInput for what the caller can change; RuntimeFailure once a peer or a link is lost, and from then on.
class Run {
 public:
  // `host` must outlive the run. `stopwatch`: tells what compute takes.
  Run(Host& host, std::shared_ptr<Peers> peers, const RunOptions& options,
      std::unique_ptr<Stopwatch> stopwatch = std::make_unique<HostStopwatch>());
  // Ends the links' threads. Waits for the ops that run, unless all has failed.
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Makes the plan of `plan` the one in force, from its iteration 0; nothing of another may be pending. `accumulated`: its
  // tensors whose gradients this iteration has accumulated, as accumulated() told before.
  void install(RunPlan&& plan, std::span<const std::int32_t> accumulated = {}) REQUIRES(compute_thread);
  // Returns the tensors whose gradients came in backwards that were not communicated, and are still to be.
  std::vector<std::int32_t> accumulated() const REQUIRES(compute_thread);
  // Then: starts its links' threads, each with its channel.
  void start(std::vector<std::shared_ptr<Channel>> channels) REQUIRES(compute_thread);
  bool installed() const REQUIRES(compute_thread) { return plan_ != nullptr; }

  // ---- points of an iteration

  // The model is called for a backward, whether it will be communicated or accumulated.
  void forward_begins() REQUIRES(compute_thread);
  void forward_start(std::int32_t layer) REQUIRES(compute_thread);
  // Its parameters are about to be read for its forward, which comes later: applies what forward_start() would.
  void forward_comes(std::int32_t layer) REQUIRES(compute_thread);
  void forward_end(std::int32_t layer) REQUIRES(compute_thread);
  void backward_start() REQUIRES(compute_thread);
  // The gradient of `tensor` is complete.
  void gradient(std::int32_t tensor) REQUIRES(compute_thread);
  void finish_backward() REQUIRES(compute_thread);
  // Applies what the plan applies at iteration_end and begins the next iteration. If the caller has taken all
  // gradients away since the backward, the batch is dropped, as by skip().
  void end_iteration() REQUIRES(compute_thread);
  // In place of end_iteration(): what holds a gradient of the last backward is left out; everything else of
  // the plan goes on. Every rank has to do the same. Errors: InvalidInput if there is none, or if the plan has
  // used it in the backward.
  void skip() REQUIRES(compute_thread);
  // Whether all gradients were taken away since the backward, under a plan that had handed them over. If there
  // is no step, the caller owes skip() before the next forward.
  bool taken_away() const REQUIRES(compute_thread);

  // Off: gradients accumulate and nothing is communicated.
  void set_communicating(bool on) REQUIRES(compute_thread) { communicating_ = on; }
  bool communicating() const REQUIRES(compute_thread) { return communicating_; }
  // Whether the first gradient of a backward has come and its end has not.
  bool in_backward() const REQUIRES(compute_thread) { return phase_ == Phase::kBackward; }
  // Whether a backward was communicated since the last end_iteration().
  bool reduced() const REQUIRES(compute_thread) { return phase_ == Phase::kReduced; }
  // Whether gradients of the last backward came on top of those of an earlier one that no step has used.
  bool accumulates() const REQUIRES(compute_thread) { return accumulates_; }
  // Whether what holds a gradient of the last backward is left out, alike on all ranks.
  bool overflowed() const REQUIRES(compute_thread);

  // Applies everything that is on its way, then averages parameters that ranks stepped on their own; the plan
  // goes on from its iteration 0. Collective: ranks meet in `what` first ("finish()"), since they would run
  // other ops after other iterations. Between iterations only.
  void drain(const std::string& what) REQUIRES(compute_thread);
  // Applies what the coming forward would, and waits for the ops that can run. Safe on one rank alone.
  void synchronize() REQUIRES(compute_thread);

  // Between iterations: as synchronize(), and ends every op that has its data, so that ranks which all do this have
  // the same ops behind them. A synchronous plan has nothing left to do once a backward is over: that iteration ends here, as one
  // whose step a GradScaler leaves out does. Errors: InvalidInput in an iteration else.
  void rest() REQUIRES(compute_thread);
  // Returns which iteration of the run was coming. Reads from the archive.
  static std::int64_t archived_iteration(Archive& archive);
  // After rest(): writes how far the run is. Between install() of the same plan and start(): reads it.
  void archive(Archive& archive) REQUIRES(compute_thread);
  // The same of what iterations before gave to codecs.
  void archive_given(Archive& archive) REQUIRES(compute_thread) { plan_->outbox.archive_given(archive); }
  // Before the first install(): so many iterations of the job have been run elsewhere.
  void begin_at(std::int64_t iteration) REQUIRES(compute_thread) { cursor_.begin_at(iteration); }
  // Calls `visit` with every execution whose message may hold something.
  void visit_alive(const std::function<void(const Execution&)>& visit) const REQUIRES(compute_thread);

  // Calls `visit` with each part of the gradients that the coming forward will apply, once it has landed.
  // Errors: InvalidInput if the plan sends some of it only in the next iteration.
  void visit_coming(const std::function<void(const Part&)>& visit) REQUIRES(compute_thread);

  // ---- what others ask. The caller owes a plan in force for the first four.

  // What the end of this iteration steps.
  Stepped stepped_at_end() const REQUIRES(compute_thread);
  const RunPlan& plan() const REQUIRES(compute_thread) { return plan_->tables->plan; }
  std::size_t slots() const REQUIRES(compute_thread) { return plan_->tables->ring.capacity(); }
  // IterationTimer::statistics(), behind(), iteration_ns() and take_iteration_ns(), of this rank.
  IterationStatistics statistics(std::int64_t iterations, std::size_t rank, bool wait)
      REQUIRES(compute_thread);
  std::int64_t behind() REQUIRES(compute_thread) { return recorder_.timer().behind(); }
  std::vector<double> iteration_ns(std::int64_t most) REQUIRES(compute_thread) {
    return recorder_.timer().iteration_ns(most);
  }
  std::vector<double> take_iteration_ns(bool wait) REQUIRES(compute_thread) {
    return recorder_.timer().take_iteration_ns(wait);
  }
  // LayerTimer::begin_profile() and end_profile(). The caller owes a plan in force.
  void begin_profile(std::int64_t iterations) REQUIRES(compute_thread) {
    recorder_.layers().begin_profile(iterations);
  }
  LayerTimes end_profile() REQUIRES(compute_thread) { return recorder_.layers().end_profile(); }
  // Of no plan, no step is anywhere.
  StepPoints steps() const REQUIRES(compute_thread) { return plan_ ? plan_->tables->steps : StepPoints(); }
  // Layers whose forward_start or forward_end the plan needs.
  std::vector<std::int32_t> forward_layers() const REQUIRES(compute_thread);
  std::int64_t iteration() const REQUIRES(compute_thread) { return cursor_.of_run(); }
  Counters counters() const REQUIRES(compute_thread);
  // Any thread may use it, and may outlive the run with it.
  const std::shared_ptr<OpQueue>& queue() const { return queue_; }

  // Ends training for all ranks because `what` failed for `cause`, `after` it began, as a lost op does.
  [[noreturn]] void fail(const std::string& what, Clock::duration after, const std::string& cause) const
      REQUIRES(compute_thread) {
    ending_.fail(what, after, cause);
  }

  void set_timeline(bool on) REQUIRES(compute_thread);
  // Returns what was recorded of compute and links since the last call, in no order and without labels of
  // layers.
  std::vector<Span> take_spans() REQUIRES(compute_thread);

 private:
  enum class Phase : std::uint8_t { kIdle, kBackward, kReduced };
  // What lives as long as a plan is in force.
  struct InForce {
    InForce(Run& run, std::shared_ptr<Tables> made);

    std::shared_ptr<Tables> tables;
    Flags flags;
    Context context;
    Window window;
    Arrivals arrivals;
    Outbox outbox;
    Applies applies;
    std::vector<std::int64_t> forwarded;  // by layer: iteration whose forward_start has passed
    bool scaled = false;                  // gradients of this backward: ranks tell whether all were finite
    std::vector<std::unique_ptr<Link>> links;
    bool holds = false;  // the compute thread launches ops, and some release has a delay
  };

  // run.cc
  void enter_backward() REQUIRES(compute_thread);
  void dealt_with(std::int32_t tensor) REQUIRES(compute_thread);
  void end_layer(std::int32_t layer) REQUIRES(compute_thread);
  void tell_flags() REQUIRES(compute_thread);
  [[noreturn]] void refuse_not_finite() REQUIRES(compute_thread);
  void apply_forward(std::int32_t layer) REQUIRES(compute_thread);
  void pass_forward(std::int32_t layer) REQUIRES(compute_thread);
  bool is_behind(std::size_t layer) const REQUIRES(compute_thread);
  bool is_outside_end(std::int32_t tensor) const REQUIRES(compute_thread);
  void finish_iteration() REQUIRES(compute_thread);
  // `accumulates`: the caller's iteration goes on with another backward.
  void advance(bool accumulates = false) REQUIRES(compute_thread);
  void begin_iteration() REQUIRES(compute_thread);
  void open(std::int64_t iteration) REQUIRES(compute_thread);
  void start_early(std::int32_t op) REQUIRES(compute_thread);
  void retire(std::int64_t iteration) REQUIRES(compute_thread);
  void pass(PointKind kind, std::int32_t layer) REQUIRES(compute_thread);
  void hold_released(PointKind kind, std::int32_t layer) REQUIRES(compute_thread);
  void restart() REQUIRES(compute_thread);
  void launch_due() REQUIRES(compute_thread);
  void end_span(SpanKind kind, std::int32_t layer) REQUIRES(compute_thread) {
    recorder_.end_span(kind, cursor_.of_run(), layer);
  }

  // caller.cc
  void check_kept() REQUIRES(compute_thread);
  void leave_out() REQUIRES(compute_thread);

  // drain.cc
  void end_left_iteration() REQUIRES(compute_thread);
  void cut(const Execution& execution, std::int64_t end) REQUIRES(compute_thread);
  void cut_row(std::int64_t iteration, std::int64_t end) REQUIRES(compute_thread);
  void drain_iteration(std::int64_t end) REQUIRES(compute_thread);
  void drain_end_of_iteration(std::int64_t end) REQUIRES(compute_thread);
  bool pending(const RunApply& apply, std::int64_t end) const REQUIRES(compute_thread);
  void average_over_ranks() REQUIRES(compute_thread);

  const RunIteration& here() const REQUIRES(compute_thread) { return plan_->context.here(); }
  Execution& at(std::int64_t iteration, std::int32_t op) const REQUIRES(compute_thread) {
    return plan_->context.at(iteration, op);
  }
  std::vector<std::int32_t> all_tensors() const REQUIRES(compute_thread);

  Host& host_;
  RunOptions options_;
  std::shared_ptr<Peers> peers_;
  std::shared_ptr<OpQueue> queue_;
  Cursor cursor_ GUARDED_BY(compute_thread);
  Recorder recorder_ GUARDED_BY(compute_thread);
  Ending ending_ GUARDED_BY(compute_thread);
  Phase phase_ GUARDED_BY(compute_thread) = Phase::kIdle;
  bool accumulates_ GUARDED_BY(compute_thread) = false;
  bool communicating_ GUARDED_BY(compute_thread) = true;
  std::unique_ptr<InForce> plan_ GUARDED_BY(compute_thread);
};

}  // namespace gradweave::run
