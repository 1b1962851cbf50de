// Links: each has issuing threads that take ops strictly in plan order.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "gradweave/timeline.h"
#include "plan/calendar.h"
#include "runtime/fence.h"
#include "runtime/peers.h"

namespace gradweave::runtime {

using Clock = std::chrono::steady_clock;

// Makes ops last no less than a cost model says, without burning CPU.
struct Emulation {
  Nanoseconds startup_ns = 0;
  double ns_per_byte = 0;
};

struct LinkSpec {
  std::string name;
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // null: one rank, no communication
  std::optional<Emulation> emulation;
};

struct LinkOptions {
  std::chrono::milliseconds timeout{300'000};  // of one op
  bool check = false;                          // compare plan, sequence and size across ranks before each op
  bool timeline = false;
  c10::Device device = c10::kCPU;
};

// One execution of an op. The engine owns it; a link works on it between release and completion.
struct OpRun {
  const CalendarOp* op = nullptr;
  std::int64_t iteration = 0;         // of the program, the one that lists it
  std::int64_t run_iteration = 0;     // of the run, for people
  std::int32_t place = 0;             // in its iteration's list
  at::Tensor flat;                    // the message; in the end the result
  at::Tensor own;                     // what this rank sent, if the op keeps it
  std::vector<std::uint8_t> written;  // per block: its part of `flat` has been begun
  std::int32_t pending = 0;           // parts of the data still to come
  bool absent = false;                // drained away: none of its iterations exists
  bool forced = false;                // awaited: its release is void
  bool done = false;
  OpRun* partner = nullptr;  // an all_gather's reduce_scatter
  Fence data, result;
};

// What the links share with the engine. Everything below the mutex is guarded by it.
struct Exchange {
  std::mutex mutex;
  std::condition_variable done;                // an op has ended, or the exchange has failed
  std::string failure;                         // empty: none. Once set, nothing runs any more
  Clock::time_point passed_at = Clock::now();  // when the compute thread last passed a point
  bool failed() const { return !failure.empty(); }
  // Sets the failure, unless there is one, and wakes all who wait. Takes the mutex.
  void fail(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (!failed()) failure = why;
    done.notify_all();
  }

  // When a release passes, or nothing if it hasn't passed yet. Called with the mutex held.
  std::function<std::optional<Clock::time_point>(const OpRun&)> released_at;
  std::function<std::string(const OpRun&)> describe;  // "op 'all_reduce a +3' (iteration 7, link eth0)"

  // Runs that threads which were given up may still write to.
  std::shared_ptr<void> abandoned;
};

struct LinkCounters {
  std::atomic<std::int64_t> ops{0}, bytes{0}, busy_ns{0};
};

// One link's queue and threads. A link of concurrency k has k threads, and op s belongs to thread s mod k;
// ops are issued in order whatever k is.
class Link {
 public:
  // `exchange` and `peers` must outlive the link. `capacity`: ops queued at once, at most. `hash`: of the
  // plan.
  Link(LinkSpec spec, std::int32_t concurrency, std::int32_t track, std::size_t capacity, std::string hash,
       const LinkOptions& options, std::shared_ptr<Exchange> exchange, std::shared_ptr<Peers> peers,
       std::shared_ptr<std::atomic<std::int64_t>> progress);
  // Waits for the ops that run; gives them up if the exchange has failed, since no backend can abort one.
  // The caller then owes that their runs live as long as the exchange.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // With the exchange's mutex held: appends an op; wakes the threads if the next op may have become ready;
  // voids the releases of everything up to `run`.
  void push(OpRun* run);
  void wake();
  void force_up_to(const OpRun* run);
  // Whether an op is under way or could start now.
  bool busy() const;

  const std::string& name() const;
  const LinkCounters& counters() const;
  bool emulated() const;
  void set_timeline(bool on);
  // Returns what was recorded and forgets it.
  std::vector<Span> take_spans();

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::vector<std::thread> lanes_;
};

}  // namespace gradweave::runtime
