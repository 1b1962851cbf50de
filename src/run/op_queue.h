// What the compute thread and the links' threads share: how far each op is, and which may be launched next.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "gradweave/timeline.h"
#include "run/archive.h"
#include "run/compute_thread.h"
#include "run/execution.h"
#include "run/launch_order.h"
#include "run/op_log.h"
#include "run/stopwatch.h"

namespace gradweave::run {

struct OpQueueOptions {
  std::chrono::milliseconds timeout{300'000};  // of one op
  // A rank that does something else than train, such as waiting for others at a barrier, passes no points.
  // Its peers may need its ops meanwhile, so that releases hold only so long.
  std::chrono::milliseconds stall{1'000};
  bool timeline = false;
  std::size_t flight_events = 0;  // that are kept of what was done last; 0: none
};

// An op that a link's thread is to issue now. `absent`: drained away, there is nothing to issue.
struct Turn {
  const Execution* execution = nullptr;
  bool absent = false;
};

// A turn of the compute thread, where it launches the ops.
struct NextTurn {
  std::size_t link = 0, sequence = 0;  // of the op, among those of its link
  Turn turn;
};

// A wait of the compute thread; `waited` is false if the op had ended before.
struct Waited {
  bool waited = false;
  Clock::time_point begin, end;
};

// An op that should have ended by now.
struct Overdue {
  std::string op;
  Clock::duration after{};  // it began
};

// Returns "op 'all_reduce a +3' (iteration 7, link eth0)".
std::string describe(const RunPlan& plan, const Execution& execution);

// The lock around them, and who waits for whom: what decides is LaunchOrder, what is noted OpLog. All members lock for themselves.
// Links are numbered as in the plan.
class OpQueue {
 public:
  // `give_up`, as Peers::give_up(): what it returns of an op that is overdue ends everything. The compute thread calls it.
  using GiveUp =
      std::function<std::string(const std::string& what, Clock::duration after, const std::string& cause)>;
  OpQueue(const OpQueueOptions& options, GiveUp give_up)
      : options_(options), give_up_(std::move(give_up)), log_(options.timeline, options.flight_events) {}

  // For a plan that comes into force, which must outlive its links' threads. Nothing may be under way.
  void reset(const RunPlan& plan, std::size_t capacity);
  // On: ops of all links are launched in the order of the plan's list. Off: only those of each link.
  void set_ordered_launches(bool on);
  // Not null: the compute thread launches the ops, in the order of the plan's list over all links. `launch` is called by the
  // members below whenever some may have become due, and is to take turns until next_turn() has none.
  void launch_by(std::function<void()> launch) REQUIRES(compute_thread);
  // Forgets the points that have passed: the plan begins anew, after so many iterations of the run.
  void restart(std::int64_t iterations);

  // ---- compute thread

  // Makes the queue know executions that have been opened in the ring.
  void open(std::span<const Execution> row);
  // Appends those that are not done to their links' queues, in this order.
  void push(std::span<const Execution> row, std::int64_t iteration) REQUIRES(compute_thread);
  void pass(PointKind kind, std::int32_t layer, std::int64_t iteration) REQUIRES(compute_thread);
  // `parts` more of the op's data have arrived.
  void arrive(const Execution& execution, std::int32_t parts) REQUIRES(compute_thread);
  std::int32_t missing(const Execution& execution) const;
  // Whether its op has ended.
  bool done(const Execution& execution) const;
  // Where the compute thread launches: the op whose turn it is, if it may start. The program alone decides on that, and no clock: a
  // release is its point; the channel holds the op for the delay.
  std::optional<NextTurn> next_turn() REQUIRES(compute_thread);
  // The plan ends: until restart() no release holds an op, whatever its delay.
  void begin_drain() REQUIRES(compute_thread);
  // Drains: `parts` of its data will never come, and it is `absent` if none does.
  void cut(const Execution& execution, std::int32_t parts, bool absent) REQUIRES(compute_thread);
  // Returns when the op has ended. It and what is before it on its link ignore releases at points that have not been passed: the
  // real order of layers may differ from the plan's. `layer`: that waits, -1 at the iteration's end. Errors: RuntimeFailure, also once an op
  // is under way for longer than `timeout`, whatever its backend makes of that, and `timeout` + `stall` after the last op
  // ended if nothing is under way then.
  Waited wait(const Execution& execution, std::int32_t layer) REQUIRES(compute_thread);
  // Returns when no op is under way and none could start. Errors: as wait().
  void wait_idle();
  // Issues, whatever their releases say, all ops that have their data and nothing without before them; returns when
  // they have ended. Errors: as wait().
  void run_ready() REQUIRES(compute_thread);
  // Writes how long each op of a row took, 0 for those that were not run.
  void times(std::span<const Execution> row, std::vector<std::int64_t>& ns) const;
  // While nothing is under way: how far the executions of a row are, and which points have passed.
  void archive(Archive& archive, std::span<const Execution> row);
  void archive_points(Archive& archive);
  // Before the end: waits likewise, until no op has ended for `patience`, at most the timeout in all. Then ends
  // everything.
  void settle(Clock::duration patience);
  void check_failure() const;

  // ---- links' threads

  // Waits until op number `sequence` of a link may be issued. Its execution is null if the thread is to
  // leave.
  Turn await_turn(std::size_t link, std::size_t sequence);
  void launched(std::size_t link);
  // `on_device`: an accelerator ran it, whose timeline it is part of.
  void ended(const Execution& execution, Clock::time_point begin, bool on_device = false);
  void skipped(const Execution& execution);

  void joined(std::size_t link);
  void left(std::size_t link);
  // Tells a link's threads to leave. Returns whether they have: after a failure some may be stuck.
  bool stop(std::size_t link);

  // ---- any thread

  // Ends everything, unless it has ended before: the first failure stays.
  void fail(const std::string& why);
  bool failed() const;
  // Whether the failure has been thrown to a caller.
  bool told() const { return told_; }
  std::string failure() const;
  std::int64_t progress() const;  // ops ended
  OpCounters counters() const;
  void set_timeline(bool on);
  // Returns what was recorded of ops since the last call.
  std::vector<Span> take_spans();
  // Names of the plan's layers, for what flight() returns.
  void name_layers(std::vector<std::string> names);
  // Returns what was done last, until now; empty if no events are kept.
  Timeline flight() const;

 private:
  // A link's threads.
  struct Threads {
    std::size_t count = 0;
    bool stop = false;
    CondVar wake;
  };
  struct UnderWay {
    const Execution* execution;
    Clock::time_point begin;
  };

  Threads& threads_of(std::size_t link) REQUIRES(mutex_) { return *threads_[link]; }
  Turn begun(const Execution& execution, Clock::time_point now) REQUIRES(mutex_);
  void await(const Execution& execution) REQUIRES(mutex_);
  // Waits until something has ended, no longer than `until`. Returns the op that is overdue then, if one is.
  std::optional<Overdue> await_end(Clock::time_point until = Clock::time_point::max()) REQUIRES(mutex_);
  void give_up(const Overdue& overdue) EXCLUDES(mutex_);
  void count_launch(std::size_t link) REQUIRES(mutex_);
  void finish(const Execution& execution) REQUIRES(mutex_);
  void wake_links() REQUIRES(mutex_);
  void require_no_failure() const REQUIRES(mutex_);
  void launch_due() const REQUIRES(compute_thread) {
    if (launch_) launch_();
  }
  void end_all(const std::string& why) REQUIRES(mutex_);

  const OpQueueOptions options_;
  const GiveUp give_up_;
  std::function<void()> launch_ GUARDED_BY(compute_thread);
  mutable Mutex mutex_;
  CondVar done_;  // an op has ended, a thread has left, or all has failed
  const RunPlan* plan_ GUARDED_BY(mutex_) = nullptr;
  LaunchOrder order_ GUARDED_BY(mutex_);
  OpLog log_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Threads>> threads_ GUARDED_BY(mutex_);  // by link
  std::vector<UnderWay> under_way_ GUARDED_BY(mutex_);                // the first to begin first
  std::string failure_ GUARDED_BY(mutex_);
  mutable std::atomic<bool> told_ = false;
};

}  // namespace gradweave::run
