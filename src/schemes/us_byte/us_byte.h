// US-Byte's model and algorithms, apart from the scheme for the sake of tests. us_byte.cc explains them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gradweave/cost.h"
#include "schemes/common.h"
#include "schemes/schedule.h"

namespace gradweave {

// What US-Byte calls a layer: neighbouring tensors of one dtype, usually one tensor. Its elements are
// numbered in forward order, so that its first blocks are the most urgent.
struct SendUnit {
  std::vector<std::size_t> tensors;   // in forward order
  std::vector<std::int64_t> offsets;  // of each tensor's first element; size tensors + 1
  std::int64_t element_bytes = 0;
  bool given_time = false;
  Nanoseconds ready = 0;      // from the start of backward
  double ns_per_element = 0;  // a guess; decisions are made on exact costs
  std::int64_t elements() const { return offsets.back(); }
};

// Priorities and block sizes: what US-Byte decides.
struct SendOrder {
  std::vector<std::size_t> first_phase;      // units, the most urgent first: the inverse of P_1
  std::vector<std::int64_t> block_elements;  // of each unit: S_p
};

// One op: elements [begin, end) of some units, in forward order.
struct SendPart {
  std::size_t unit;
  std::int64_t begin, end;
};
struct SendOp {
  std::size_t first_part, past_part;  // in SendTimes::parts
  Nanoseconds start, end;
};
struct SendTimes {
  std::vector<SendOp> ops;
  std::vector<SendPart> parts;
  std::size_t first_phase_ops = 0;
  Nanoseconds iteration = 0;  // the claim
  std::int64_t steps = 0;     // units and ops that the evaluation has gone through
};

class UsByteModel {
 public:
  // `groups` in backward order, each of neighbouring whole tensors of one dtype and all with or without given
  // times.
  UsByteModel(const CostModel& model, const std::vector<Message>& groups);

  const std::vector<SendUnit>& units() const { return units_; }  // in forward order
  // Returns forward order and blocks of `bytes` for every unit.
  SendOrder sequential(std::int64_t block_bytes) const;

  // Algorithm 1 and the second phase, on the first link taken as serving one op at a time. `fuse`: the second
  // phase's units share ops as Eq. 5 below says. O(ops * units / 64 + units * log time).
  void run(const SendOrder& order, bool fuse, SendTimes& times) const;

  // Algorithm 2: raises priorities in `order` as long as an evaluation finds a shorter iteration and
  // `budget`, in SendTimes::steps, lasts. Returns the iteration.
  Nanoseconds raise_priorities(SendOrder& order, bool fuse, std::int64_t& budget) const;

  // Returns the ops of `times` for a plan.
  std::vector<ScheduledOp> scheduled(const SendTimes& times) const;

 private:
  struct Rest {
    std::size_t unit;
    std::int64_t begin;
  };
  Nanoseconds cost(std::size_t unit, std::int64_t begin, std::int64_t end) const;
  Nanoseconds whole_cost(std::size_t unit) const { return whole_cost_[unit]; }
  std::int64_t fill_until(std::size_t unit, std::int64_t begin, std::int64_t at_least, std::int64_t block,
                          Nanoseconds start, Nanoseconds until) const;
  std::size_t layer_of(const SendPart& part) const;
  Nanoseconds finish(const SendTimes& times) const;
  Nanoseconds send_rests(const std::vector<Rest>& rests, Nanoseconds start, Nanoseconds deadline, bool fuse,
                         SendTimes& times) const;
  bool may_share(std::size_t unit, std::size_t next) const;

  const CostModel& model_;
  std::vector<SendUnit> units_;
  std::vector<std::size_t> by_ready_;  // units, the first ready first
  std::vector<Nanoseconds> whole_cost_;
  std::vector<Nanoseconds> behind_;  // forward time of layer l and all after it
  Nanoseconds compute_ = 0;
};

enum class BlockSizes : std::uint8_t { kPerTensor, kUniform };

struct UsByteOptions {
  std::optional<std::int64_t> partition_bytes;  // S_p; nothing: searched
  bool fusion = true;                           // tensors into units, and rests of units in the second phase
  BlockSizes block_sizes = BlockSizes::kPerTensor;  // of their own, or one for all
  Compression compression;
};

struct UsByteSchedule {
  std::vector<ScheduledOp> ops;
  Nanoseconds claim = 0;  // iteration time
  std::int64_t partition_bytes = 0;
};

// Returns the schedule for the first link, serving one op at a time.
UsByteSchedule solve_us_byte(const CostModel& model, const UsByteOptions& options);

}  // namespace gradweave
