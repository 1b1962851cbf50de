// Averages of what parameters have gained since a common point, compressed or under an outer optimizer.
//
// Each parameter x has an anchor a, the same on all ranks. A message is x - a, encoded where the plan compresses it;
// q is what it decodes to here, m the mean over ranks of what theirs decode to (in two stages: what the second
// encoding decodes to). When it lands, x += m - q and a += m; an outer optimizer makes its step of m first. What
// an encoding drops stays in x and is part of the next message. Between its reading and its landing a block is not
// read again (rule 6 of docs/plan.md), so that x - a is all that the other ranks have not seen.
//
// Anchors and momenta are float32 in the processor's memory. Where parameters are not, ops are staged (staged_gain.h).
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "run/archive.h"
#include "run/host.h"
#include "runtime/message.h"
#include "runtime/state.h"

namespace gradweave::runtime {

// Whether the op's messages are encoded in groups where they are read, rather than as a whole by their link.
inline bool in_groups(const RunOp& op) {
  return op.anchored && codec::format_of(op.compression.name).has_value();
}

// Of the compute thread; links work on the messages, and on the anchors of those that are staged.
class Anchors {
 public:
  // Returns a parameter, flat in memory order, by the number of its tensor.
  using ValueOf = std::function<at::Tensor(std::int32_t)>;

  explicit Anchors(ValueOf value_of) : value_of_(std::move(value_of)) {}

  // For a plan that comes into force; what it doesn't need is given up, but outer optimizers' buffers stay with
  // their parameters (by `parameter_of`) for the next plan that has one. `slots`: of messages.
  void install(const RunPlan& plan, std::size_t slots, const std::vector<std::int32_t>& parameter_of,
               int world_size, int rank, c10::Device device);

  // All ranks are equal: what each parameter is at the next drop() is its anchor.
  void raise() { down_ = false; }
  void drop();

  // Writes block number `at` of the op to its message; of a message that is not in_groups(), the caller has
  // acquired `flat` and `own`.
  void read(const run::Execution& execution, std::size_t at, Message& message);
  // What changes parameters on the current stream comes after what copies them: all of them, or those of one step.
  void settle();
  void settle(const Stepped& stepped);
  // Its result has arrived: moves the parameter and its anchor.
  void land(const run::Part& part, Message& message);
  // The message's buffers may be used again.
  void retire(const RunOp& op, Message& message);
  // Before an exact average: gives this rank's parameters what second encodings have dropped of all ranks' sums,
  // so that the mean gets it. Nothing may be on its way.
  void return_rests();

  // Writes or reads anchors and momenta; and a message that is in_groups() and holds something; and before that what there is of one that
  // is or was staged.
  void archive(run::Archive& numbers, StateTensors& tensors);
  void archive(const run::Execution& execution, Message& message, run::Archive& numbers,
               StateTensors& tensors, const std::string& name);

  void archive_staged(const run::Execution& execution, Message& message, StateTensors& tensors,
                      const std::string& name);

  // Makes a message that is in_groups() one of floats: its sum over ranks, of whom `sent` has the encoded messages.
  void gather(const RunOp& op, Message& message, const std::vector<at::Tensor>& sent);
  // The outer optimizer's, by parameter. They outlive plans.
  std::map<std::int32_t, at::Tensor>& momenta() { return momenta_; }
  const std::map<std::int32_t, at::Tensor>& momenta() const { return momenta_; }

  std::int64_t bytes() const { return bytes_; }
  // Returns the bytes of the processor's memory that ops which are staged take at least, besides messages' buffers.
  static std::int64_t staged_bytes(const RunPlan& plan);

 private:
  using KindKey = std::pair<codec::Format, std::vector<std::int32_t>>;  // with the blocks
  // Messages of one format and the same blocks, which go out one after another.
  struct Kind {
    const RunOp* op = nullptr;
    GroupLayout layout;
    at::Tensor rest;  // see GroupMessage
    std::vector<GroupMessage> free;
  };
  // A group that several blocks share, until all have been read.
  struct Shared {
    std::int64_t group = 0, filled = 0;
    std::array<float, codec::kGroup> gain{};
  };
  struct Anchor {
    at::Tensor value, momentum;  // flat; momentum: undefined without an outer optimizer
    Fence copied;                // the parameter, for messages that are staged
  };

  // A block's part of its anchor.
  struct Slices {
    at::Tensor anchor, momentum;
  };
  Slices slices_of(std::int32_t block) const;
  Kind& kind_of(const RunOp& op);
  void retire_groups(const RunOp& op, Message& message);
  void acquire(const run::Execution& execution, Message& message);
  void acquire_staged(const run::Execution& execution, Message& message);
  void settle(std::int32_t tensor);
  void encode(const run::Execution& execution, const GroupMessage& message, std::int64_t offset,
              std::int64_t length, const float* value, const float* anchor);
  void share(const run::Execution& execution, const GroupMessage& message, std::int64_t begin,
             std::int64_t end, const float* value, const float* anchor);
  std::uint64_t key_of(const run::Execution& execution, std::uint64_t stage) const;
  at::Tensor made(std::int64_t count, c10::ScalarType dtype);
  // The outer optimizer's, of a tensor's parameter; zeros at first.
  at::Tensor momentum_of(std::size_t tensor);
  float share() const { return static_cast<float>(1.0 / world_size_); }

  ValueOf value_of_;
  const RunPlan* plan_ = nullptr;
  std::vector<std::int32_t> parameter_of_;  // by tensor
  int world_size_ = 1, rank_ = 0;
  bool down_ = false;
  codec::Outer outer_;
  std::vector<Anchor> anchors_;                 // by tensor
  std::map<std::int32_t, at::Tensor> momenta_;  // by parameter
  std::map<KindKey, Kind> kinds_;
  std::vector<std::vector<Shared>> shared_;                                                   // by slot
  std::map<std::vector<std::int32_t>, std::vector<std::unique_ptr<StagedGain>>> free_gains_;  // by blocks
  std::optional<c10::Stream> stream_;  // an accelerator's, for copies of parameters
  std::int64_t bytes_ = 0;
};

}  // namespace gradweave::runtime
