// A link on which ops share the bandwidth, from event to event.
//
// An op in its start-up is off the link; the `a` active ones each lose floor(elapsed / a) of their remaining
// work at every event of the link, an op becoming active or ending. What is left of elapsed / a is lost, so
// no op ends before exact sharing would end it, and there are only as many events as ops. Since all active
// ops lose the same, one sum serves them all:
//   V   what an op that was active from the beginning would have lost
//   an op with work w that becomes active at V0 ends when V = V0 + w
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gradweave/decimal.h"

namespace gradweave {

class FluidLink {
 public:
  static constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

  // Ops that have started and not ended.
  std::size_t outstanding() const { return starting_.size() + active_.size(); }
  bool busy() const { return !active_.empty(); }
  // Returns when the next op becomes active or ends if nothing else starts; kNever if none is outstanding.
  // O(1).
  Nanoseconds next_event() const { return next_event_; }

  // Starts an op; `id` grows from start to start. O(log outstanding).
  void start(std::int64_t id, Nanoseconds now, Nanoseconds startup, Nanoseconds work) {
    push(starting_, {now + startup, id, work});
    next_event_ = std::min(next_event_, now + startup);
  }

  // Does what is due at `now`, no event having been left out, and calls ended(id) for each op that ends, in
  // order of start. Returns whether anything was due. O(log outstanding) for each op that joins or ends.
  template <typename Ended>
  bool update(Nanoseconds now, Ended ended) {
    if (now < next_event_) return false;
    if (!active_.empty()) served_ += (now - updated_) / static_cast<Nanoseconds>(active_.size());
    updated_ = now;
    while (!starting_.empty() && starting_.front().at <= now) {
      Entry entry = pop(starting_);
      entry.at = served_ + entry.work;
      push(active_, entry);
    }
    while (!active_.empty() && active_.front().at == served_) ended(pop(active_).id);
    if (active_.empty()) served_ = 0;
    next_event_ = starting_.empty() ? kNever : starting_.front().at;
    if (!active_.empty()) {
      const auto sharing = static_cast<Nanoseconds>(active_.size());
      next_event_ = std::min(next_event_, updated_ + (active_.front().at - served_) * sharing);
    }
    return true;
  }

  // Returns the lowest id outstanding, or kNever. O(outstanding).
  std::int64_t first_id() const {
    std::int64_t first = kNever;
    for (const Entry& entry : starting_) first = std::min(first, entry.id);
    for (const Entry& entry : active_) first = std::min(first, entry.id);
    return first;
  }

  // Appends all that the link's future depends on, ids counted from `origin`, times from `now`.
  // O(outstanding * log outstanding).
  void snapshot(Nanoseconds now, std::int64_t origin, std::vector<std::int64_t>& state) const {
    const auto append = [&](std::vector<Entry> entries, Nanoseconds from, bool with_work) {
      state.push_back(static_cast<std::int64_t>(entries.size()));
      std::ranges::sort(entries, {}, &Entry::id);
      for (const Entry& entry : entries) {
        state.push_back(entry.id - origin);
        state.push_back(entry.at - from);
        if (with_work) state.push_back(entry.work);
      }
    };
    state.push_back(busy() ? now - updated_ : 0);
    append(active_, served_, false);
    append(starting_, now, true);
  }

 private:
  struct Entry {
    Nanoseconds at = 0;  // active: the V at which it ends; starting: when its start-up is over
    std::int64_t id = 0;
    Nanoseconds work = 0;
  };
  // The front of a heap is the entry with the least (at, id).
  static bool after(const Entry& x, const Entry& y) { return x.at != y.at ? x.at > y.at : x.id > y.id; }
  static void push(std::vector<Entry>& heap, const Entry& entry) {
    heap.push_back(entry);
    std::ranges::push_heap(heap, after);
  }
  static Entry pop(std::vector<Entry>& heap) {
    std::ranges::pop_heap(heap, after);
    const Entry entry = heap.back();
    heap.pop_back();
    return entry;
  }

  std::vector<Entry> starting_, active_;  // heaps
  Nanoseconds served_ = 0;                // V; 0 where nothing is active
  Nanoseconds updated_ = 0;               // when V was last brought up to date
  Nanoseconds next_event_ = kNever;
};

}  // namespace gradweave
