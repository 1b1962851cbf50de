// Fills slots of link time with tensors, whole or cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gradweave/cost.h"
#include "solve/message.h"

namespace gradweave {

// A stretch of one link's time that begins and ends with an iteration of a cycle.
struct Slot {
  std::size_t link = 0;
  std::int32_t first = 0;  // begins at the end of this iteration of the cycle
  std::int32_t width = 1;  // and ends at the end of iteration first + width
  friend bool operator==(const Slot&, const Slot&) = default;
};

// Slots and what they hold. The fused messages of a slot have one dtype each and go one after another; they
// may take `width` times the given time. Costs are the cost model's, to the nanosecond.
class SlotFiller {
 public:
  // `model` must outlive the filler. `time_per_iteration` >= 0. `keep`: whether messages() will be asked for;
  // else only what fits is found out.
  SlotFiller(const CostModel& model, std::vector<Slot> slots, Nanoseconds time_per_iteration, bool keep);

  // Puts `slice` into that of slots [first, end) which is then through first, relative to its begin; the
  // first of several. Returns whether it had room. O(slots).
  bool add_where_first(std::size_t first, std::size_t end, const Slice& slice);

  // Puts what the first `count` slots hold into the next `count`, and so on; none of those may hold anything.
  // O(slots), and the slices kept.
  void repeat(std::size_t count);

  // Puts the slices one after another into the slots, in the order of the slots, each slot as full as it
  // gets; a slice that does not fit is cut. Returns whether everything found a place. O(slices + slots * log
  // numel).
  bool pour(std::span<const Slice> slices);

  Nanoseconds time_per_iteration() const { return time_per_iteration_; }
  const std::vector<Slot>& slots() const { return slots_; }
  // The messages of slot `s`, in order.
  std::vector<Message> messages(std::size_t s) const;

 private:
  struct Part {  // one message to be
    DType dtype{};
    MessageLoad load;
    Nanoseconds cost = 0;
    std::vector<Slice> slices;
  };
  struct Content {
    std::vector<Part> parts;
    Nanoseconds finish = 0;
  };
  // A slot's message of some dtype and its end, were it to hold one slice more.
  struct Trial {
    std::size_t part = 0;
    MessageLoad load;
    Nanoseconds cost = 0;
    Nanoseconds finish = 0;
  };
  Trial with(std::size_t s, const Slice& slice) const;
  void add(std::size_t s, const Slice& slice, const Trial& trial);
  Nanoseconds limit(std::size_t s) const { return time_per_iteration_ * slots_[s].width; }
  Nanoseconds reserve(std::size_t link, std::size_t parts) const;
  std::int64_t elements_that_fit(std::size_t s, const Slice& slice) const;

  const CostModel* model_;
  std::vector<Slot> slots_;
  Nanoseconds time_per_iteration_;
  bool keep_;
  std::vector<Content> contents_;
};

// Returns the least time t <= `enough` for which fits(t), at most `tolerance` above it, for a predicate that
// stays true once it is and holds at `enough`. O(log enough) calls.
Nanoseconds least_time(Nanoseconds enough, Nanoseconds tolerance,
                       const std::function<bool(Nanoseconds)>& fits);

// Returns `from` >= 1 doubled until it fits. Errors: InvalidInput where no time up to 2^53 ns does.
Nanoseconds time_that_fits(Nanoseconds from, const std::function<bool(Nanoseconds)>& fits);

}  // namespace gradweave
