// How far each op of a plan is, and which may be launched next on each link. Decides by points and data alone: it has no thread and
// no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "run/archive.h"
#include "run/execution.h"
#include "run/stopwatch.h"

namespace gradweave::run {

// Which points of its iterations compute has passed, and when.
class PassedPoints {
 public:
  // None has; for a plan of so many layers.
  void restart(std::size_t layers);
  void pass(PointKind kind, std::int32_t layer, std::int64_t iteration, Clock::time_point now) {
    last_ = now;
    passed_[place_of(kind, layer)] = {iteration, now};
  }
  // Returns when the execution's release passes, or nothing if its point hasn't been passed yet.
  std::optional<Clock::time_point> released_at(const Execution& execution) const;
  // Returns when the last one was passed.
  Clock::time_point last() const { return last_; }
  // Those that are read were passed `now`.
  void archive(Archive& archive, Clock::time_point now);

 private:
  struct Passed {
    std::int64_t iteration = -1;
    Clock::time_point at;
  };
  std::size_t place_of(PointKind kind, std::int32_t layer) const {
    return static_cast<std::size_t>(kind) * layers_ + static_cast<std::size_t>(layer);
  }

  std::size_t layers_ = 0;
  std::vector<Passed> passed_;  // by kind and layer
  Clock::time_point last_ = Clock::now();
};

class LaunchOrder {
 public:
  // For a plan that comes into force, with so many executions alive at most.
  void reset(const RunPlan& plan, std::size_t capacity);
  // On: ops of all links are launched in the order in which they were pushed. Off: only those of each link.
  void set_ordered(bool on) { ordered_ = on; }
  bool ordered() const { return ordered_; }
  PassedPoints& points() { return points_; }
  const PassedPoints& points() const { return points_; }

  // ---- what becomes of an op

  // As OpQueue::open() and push().
  void open(std::span<const Execution> row);
  void push(std::span<const Execution> row, std::int64_t iteration);
  // `parts` more of its data have arrived. Returns whether none is missing.
  bool arrive(const Execution& execution, std::int32_t parts) {
    return (of(execution).pending -= parts) <= 0;
  }
  // As OpQueue::cut().
  void cut(const Execution& execution, std::int32_t parts, bool absent);
  // Compute waits for an op: if that has not ended, its release and those of what is before it, on its link or on all where
  // they are ordered, hold from now on only once their points have been passed, which compute may never do. The steps of a
  // message are before each other too, whatever their links.
  void await(const Execution& execution);
  // On: no release holds an op, whatever its delay. Off: as long as it says.
  void void_releases(bool on) { void_ = on; }
  // The next op of a link has been launched, or was left out.
  void launched(std::size_t link) {
    ++queues_[link].issued;
    ++launches_;
  }
  // An op that was launched or left out has ended.
  void ended(const Execution& execution);

  // ---- what is known

  std::int32_t missing(const Execution& execution) const { return of(execution).pending; }
  bool done(const Execution& execution) const { return of(execution).done; }
  // Drained away, and so there is nothing to launch. A step is absent with the first of its message: a link may look at it before
  // it is cut itself.
  bool absent(const Execution& execution) const {
    return execution.before == nullptr ? of(execution).absent : absent(*execution.before);
  }
  // Returns how many ops of a link were launched or left out.
  std::size_t issued(std::size_t link) const { return queues_[link].issued; }
  // Whether some of its ops have not been.
  bool waiting(std::size_t link) const { return queues_[link].issued < queues_[link].pushed; }
  // Returns the next op of a link, if it has its data and no other link's comes first; else null.
  const Execution* next(std::size_t link) const {
    const Queue& queue = queues_[link];
    if (queue.issued == queue.pushed) return nullptr;
    const Execution& next = *queue.at(queue.issued);
    return has_data(next) && (!ordered_ || of(next).order == launches_) ? &next : nullptr;
  }
  // Returns when an op's release has passed or will pass: long ago where it does not hold; nothing if its point hasn't been
  // passed yet.
  std::optional<Clock::time_point> free_at(const Execution& execution) const;
  // Returns the next op of a link if its release's point has been passed too; else null.
  const Execution* due(std::size_t link) const;
  // Whether some op is under way, or due.
  bool busy() const;

  // How far the executions of a row are.
  void archive(Archive& archive, std::span<const Execution> row);

 private:
  struct Progress {
    std::int32_t pending = 0;  // parts of the data still to come
    bool absent = false;       // drained away: none of its iterations exists
    bool awaited = false;      // or before one that is
    bool done = false;
    std::int64_t order = -1;  // of its launch, among all links; -1: not queued yet
  };
  struct Queue {
    std::vector<const Execution*> ring;
    std::size_t pushed = 0, issued = 0, ended = 0;

    const Execution* at(std::size_t sequence) const { return ring[sequence % ring.size()]; }
  };

  Progress& of(const Execution& execution) { return progress_[execution.slot]; }
  const Progress& of(const Execution& execution) const { return progress_[execution.slot]; }
  Queue& queue_of(const Execution& execution) {
    return queues_[static_cast<std::size_t>(execution.op->link)];
  }
  bool has_data(const Execution& execution) const {
    return of(execution).pending == 0 && (execution.before == nullptr || done(*execution.before));
  }

  bool ordered_ = false, void_ = false;
  std::vector<Progress> progress_;          // by slot
  std::vector<Queue> queues_;               // by link
  std::int64_t queued_ = 0, launches_ = 0;  // over all links
  PassedPoints points_;
};

}  // namespace gradweave::run
