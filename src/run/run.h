// Runs a plan on one rank: what is due at each point, what is read, sent, waited for and applied, and in
// which order. It knows no tensor and no network: a Host holds the data, a Channel carries each link's ops.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradweave/timeline.h"
#include "run/archive.h"
#include "run/channel.h"
#include "run/execution.h"
#include "run/host.h"
#include "run/iteration_timer.h"
#include "run/link.h"
#include "run/op_queue.h"
#include "run/peers.h"

namespace gradweave::run {

// Whether ranks tell each other in each iteration which parameters had a gradient, so that what no rank used
// is not stepped. kAuto: only if the first iteration of a plan leaves some parameter unused on some rank.
enum class FindUnused : std::uint8_t { kAuto, kOn, kOff };

struct RunOptions {
  OpQueueOptions queue;
  FindUnused find_unused = FindUnused::kAuto;
  bool check = false;  // ranks tell each other in each iteration whose gradients are not finite
  int world_size = 1;
};

struct Counters {
  std::int64_t iterations = 0, updates = 0;
  std::int64_t ops = 0, bytes = 0;
  std::int64_t exposed_ns = 0, waits = 0;
};

// The compute thread calls it. Errors: InvalidInput for what the caller can change; RuntimeFailure once a
// peer or a link is lost, and from then on.
class Run {
 public:
  // `host` must outlive the run.
  Run(Host& host, const RunOptions& options);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  // The caller owes them before a plan comes into force.
  void set_peers(std::shared_ptr<Peers> peers) { peers_ = std::move(peers); }

  // Makes the plan of `calendar` the one in force, from its iteration 0; nothing of another may be pending.
  void install(Calendar&& calendar);
  // Then: starts its links' threads, each with its channel.
  void start(std::vector<std::shared_ptr<Channel>> channels);
  bool installed() const { return tables_ != nullptr; }
  // Ends the threads. Waits for the ops that run, unless all has failed.
  void close();

  // ---- points of an iteration

  // The model is called, in an iteration whose backward will be communicated.
  void forward_begins();
  void forward_start(std::int32_t layer);
  void forward_end(std::int32_t layer);
  void backward_start();
  // The gradient of `tensor` is complete.
  void gradient(std::int32_t tensor);
  void finish_backward();
  // Applies what the plan applies at iteration_end and begins the next iteration. If the caller has taken all
  // gradients away since the backward, the batch is dropped, as by skip().
  void end_iteration();
  // In place of end_iteration(): what holds a gradient of the last backward is left out; everything else of
  // the plan goes on. Every rank has to do the same. Errors: InvalidInput if there is none, or if the plan has
  // used it in the backward.
  void skip();
  // Whether all gradients were taken away since the backward, under a plan that had handed them over. If there
  // is no step, the caller owes skip() before the next forward.
  bool taken_away() const;

  // Off: gradients accumulate and nothing is communicated.
  void set_communicating(bool on) { communicating_ = on; }
  bool communicating() const { return communicating_; }
  // Whether the first gradient of a backward has come and its end has not.
  bool in_backward() const { return phase_ == Phase::kBackward; }
  // Whether a backward was communicated since the last end_iteration().
  bool reduced() const { return phase_ == Phase::kReduced; }
  // Whether what holds a gradient of the last backward is left out, alike on all ranks.
  bool overflowed() const { return installed() && spoilt(iteration_); }

  // Applies everything that is on its way, then averages parameters that ranks stepped on their own; the plan
  // goes on from its iteration 0. Collective: ranks meet in `what` first ("finish()"), since they would run
  // other ops after other iterations. Between iterations only.
  void drain(const std::string& what);
  // Applies what the coming forward would, and waits for the ops that can run. Safe on one rank alone.
  void synchronize();

  // Between iterations: as synchronize(), and ends every op that has its data, so that ranks which all do this have
  // the same ops behind them. Errors: InvalidInput in an iteration.
  void rest();
  // Returns which iteration of the run was coming. Reads from the archive.
  static std::int64_t archived_iteration(Archive& archive);
  // After rest(): writes how far the run is. Between install() of the same plan and start(): reads it.
  void archive(Archive& archive);
  // Before the first install(): so many iterations of the job have been run elsewhere.
  void begin_at(std::int64_t iteration) { base_ = iteration; }
  // Calls `visit` with every execution whose message may hold something.
  void visit_alive(const std::function<void(const Execution&)>& visit);

  // Calls `visit` with each part of the gradients that the coming forward will apply, once it has landed.
  // Errors: InvalidInput if the plan sends some of it only in the next iteration.
  void visit_coming(const std::function<void(const Part&)>& visit);

  // ---- what others ask

  // What the end of this iteration steps.
  Stepped stepped_at_end() const;
  const Calendar& calendar() const { return tables_->calendar; }
  std::size_t slots() const { return tables_->ring.capacity(); }
  // Layers whose forward_start or forward_end the plan needs.
  std::vector<std::int32_t> forward_layers() const;
  // Whether some step is of a part of the parameters, or elsewhere than at iteration_end.
  bool partial_steps() const { return partial_steps_; }
  bool steps_in_backward() const { return steps_in_backward_; }
  bool steps_in_forward() const { return steps_in_forward_; }
  // Whether every iteration applies exactly its own gradients at its end.
  bool synchronous() const { return synchronous_; }
  std::int64_t iteration() const { return base_ + iteration_; }
  std::int64_t backward_end_ns() const { return backward_end_ns_; }
  Counters counters() const;
  OpQueue& queue() { return *queue_; }
  std::shared_ptr<OpQueue> shared_queue() const { return queue_; }

  // Ends training for all ranks because `what` failed for `cause`, `after` it began, as a lost op does.
  [[noreturn]] void fail(const std::string& what, Clock::duration after, const std::string& cause);

  // Returns how long the last iterations took, at most kMostKept, as this rank has it; without iterations where too few
  // have passed.
  IterationStatistics statistics(std::int64_t iterations, std::size_t rank) const {
    return timer_.statistics(iterations, rank, static_cast<std::size_t>(options_.world_size));
  }

  void set_timeline(bool on);
  // Returns what was recorded of compute and links since the last call, in no order and without labels of
  // layers.
  std::vector<Span> take_spans();

 private:
  enum class Phase : std::uint8_t { kIdle, kBackward, kReduced };
  // What ranks tell each other of one iteration.
  struct Flags {
    std::vector<std::uint8_t> values;  // per tensor: had a gradient; then: some had none; then: not finite
    bool exchanging = false;
    bool spoilt = false;  // nothing that holds a gradient of this iteration is applied
  };

  // run.cc: points
  void enter_backward();
  void complete_layer_of(std::int32_t tensor);
  bool waits_for_unused(const CalendarApply& apply, std::int32_t layer) const;
  void end_layer(std::int32_t layer);
  void apply_forward(std::int32_t layer);
  void finish_iteration();
  void advance();
  void begin_iteration();
  void prepare(std::int64_t iteration);
  void push(std::int64_t iteration);
  void pass(PointKind kind, std::int32_t layer) { queue_->pass(kind, layer, iteration_); }
  void restart();
  void set_step_points();

  // gradients.cc: into messages, and what ranks tell each other of them
  void hand_over(std::int32_t tensor);
  void hand_over_block(std::int32_t block);
  double residual_coefficient() const;
  void refuse_not_finite();
  void leave_no_residual();
  void read_parameters(const CalendarApply& apply);
  void exchange_flags();
  void finish_exchange(Flags& flags);
  bool used(const CalendarApply& apply, std::int32_t tensor);
  Flags& flags_at(std::int64_t iteration) {
    return flags_[static_cast<std::size_t>(iteration) % flags_.size()];
  }
  bool spoilt(std::int64_t iteration) const {
    return flags_[static_cast<std::size_t>(iteration) % flags_.size()].spoilt;
  }
  bool holds_spoilt(const CalendarApply& apply) const;

  // applies.cc
  void apply_reduced(const CalendarApply& apply);
  void put_gradient(const CalendarApply& apply, std::size_t place);
  void apply_average(const CalendarApply& apply);
  void apply_outside_end(const std::vector<std::int32_t>& applies);
  void apply_outside_end(const CalendarApply& apply);
  void step(const Stepped& stepped);
  const Stepped& sound(const Stepped& stepped);
  const Stepped& put(const Stepped& stepped);
  void wait_for(const Execution& execution, std::int32_t layer);
  void retire(std::int64_t iteration);
  void start_early(std::int32_t op);

  void record(SpanKind kind, std::int32_t layer);

  // caller.cc
  void check_kept();
  void leave_out();
  void note_parameters();
  void check_parameters(const CalendarApply& apply);

  // checkpoint.cc
  std::int64_t first_alive() const;

  // drain.cc
  void end_left_iteration();
  void cut(const Execution& execution, std::int64_t end);
  void cut_row(std::int64_t iteration, std::int64_t end);
  void drain_iteration(std::int64_t end);
  void drain_end_of_iteration(const std::function<bool(const CalendarApply&)>& pending);
  void average_over_ranks();

  Execution& at(std::int64_t iteration, std::int32_t op) { return tables_->ring.at(iteration, op); }
  const CalendarIteration& here() const { return tables_->calendar[iteration_]; }
  Part part_of(const Piece& piece) {
    return {&at(iteration_ + piece.source.delta, piece.source.op), piece.block, piece.offset};
  }
  bool exists(std::int64_t iteration) const { return !draining_ || iteration < drain_end_; }
  std::string iteration_text() const { return "iteration " + std::to_string(base_ + iteration_); }
  std::string tensor_text(std::int32_t tensor) const;

  Host& host_;
  std::shared_ptr<Peers> peers_;
  RunOptions options_;
  std::shared_ptr<OpQueue> queue_;

  // Of the plan in force.
  std::shared_ptr<Tables> tables_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::int32_t> all_tensors_;
  bool partial_steps_ = false, steps_in_backward_ = false, steps_in_forward_ = false, synchronous_ = false;

  // Of the run.
  std::int64_t iteration_ = 0;  // of the plan, the one that is being computed
  std::int64_t base_ = 0;       // iterations before the plan was put in force
  Phase phase_ = Phase::kIdle;
  bool communicating_ = true, scaled_ = false;
  std::int64_t prepared_ = -1, pushed_ = -1;  // iterations up to which ops are ready, and handed to links
  bool draining_ = false;
  std::int64_t drain_end_ = 0;  // while draining: the first iteration that does not exist
  FindUnused find_unused_ = FindUnused::kAuto;
  std::vector<Flags> flags_;                 // ring by iteration
  std::vector<std::uint8_t> ready_;          // by tensor: handed over in this backward
  std::vector<std::uint8_t> present_;        // by tensor: and had a gradient at its end
  std::vector<std::uint8_t> touched_;        // by tensor: accumulated without communication
  std::vector<std::int32_t> missing_;        // by layer: tensors still to come in this backward
  std::vector<std::int32_t> late_;           // applies at backward_end that are left to the backward's end
  std::vector<std::int64_t> forwarded_;      // by layer: iteration whose forward_start has passed
  std::vector<std::int64_t> put_;            // by block: iteration in which its reduced gradient is in place
  std::vector<const Execution*> completed_;  // scratch of one hand-over
  std::vector<Part> parts_;                  // scratch of one apply
  Stepped left_;                             // scratch of one step
  std::int64_t last_spoilt_ = -1;            // the last iteration that is left out
  std::int64_t updated_ = -1;                // the last iteration that is counted as an update

  Counters counters_;
  IterationTimer timer_;
  std::vector<std::int64_t> op_ns_;  // scratch of one iteration's end
  std::int64_t backward_end_ns_ = 0;
  bool timeline_ = false;
  std::vector<Span> spans_;
  Clock::time_point span_begin_;
};

}  // namespace gradweave::run
