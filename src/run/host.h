// What a run calls for everything with data: gradients, parameters, messages, the optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "run/compute_thread.h"
#include "run/execution.h"

namespace gradweave::run {

// Where the gradient that is handed over comes from.
enum class Gradient : std::uint8_t {
  kComputed,     // this backward computed it
  kAccumulated,  // only backward passes before, which were not communicated
  kHeld,  // none since the last step: what the caller has left there, as DistributedDataParallel sends it
  kNone   // zeros
};

// What became of a gradient since it was handed over.
enum class Kept : std::uint8_t { kSame, kChanged, kGone };

// A block of a message.
struct Part {
  const Execution* from = nullptr;
  std::int32_t block = 0;
  std::int64_t offset = 0;  // elements
};

// What ranks tell each other of an iteration.
class FlagExchange {
 public:
  virtual ~FlagExchange() = default;

  // Begins the maximum over all ranks of each flag, in place; exchange number `slot` of a few. The flags stay
  // where they are until finish_exchange(). Errors: any std::exception.
  virtual void begin_exchange(std::size_t slot, std::span<std::uint8_t> flags) REQUIRES(compute_thread) = 0;
  virtual void finish_exchange(std::size_t slot) REQUIRES(compute_thread) = 0;
};

class Host : public FlagExchange {
 public:
  // ---- a backward

  // Before the first gradient: messages that were given back may be used again. Returns whether gradients have
  // a loss scale, which take_gradient() takes out: ranks then tell each other whether all were finite.
  virtual bool begin_backward() REQUIRES(compute_thread) = 0;
  // The gradient of `tensor` is the one that is handed over now. Errors: InvalidInput.
  virtual void take_gradient(std::int32_t tensor, Gradient gradient) REQUIRES(compute_thread) = 0;
  // Every gradient was taken, and nothing flows backward any more.
  virtual void end_backward() REQUIRES(compute_thread) = 0;
  // Error feedback on one block of it: adds coefficient * its residual; if the block is not sent, the sum becomes the
  // residual.
  virtual void compensate(std::int32_t block, double coefficient, bool sent) REQUIRES(compute_thread) = 0;
  // Whether a block has one.
  virtual bool has_residual(std::int32_t block) const REQUIRES(compute_thread) = 0;
  // Whether a codec began with one of the block's, of another plan or a checkpoint.
  virtual bool codec_began_with_residual(std::int32_t block) const REQUIRES(compute_thread) = 0;
  // Residuals are again what they were before this backward.
  virtual void restore_residuals() REQUIRES(compute_thread) = 0;
  // Nothing of this message will be applied, whether its op has been run or not: it leaves no residual either.
  virtual void leave_out(const Execution& execution) REQUIRES(compute_thread) = 0;
  // After a drain the run counts again from the drain's first iteration: executions to come may have the numbers of earlier ones.
  virtual void restart() REQUIRES(compute_thread) = 0;
  // Whether a gradient of this rank's backward was not finite.
  virtual bool overflowed() REQUIRES(compute_thread) = 0;
  // A tensor whose gradient was not finite in this rank's backward, or -1. Only asked for with a check.
  virtual std::int32_t not_finite() REQUIRES(compute_thread) = 0;

  // ---- messages

  // The gradient itself is the message, or false where it can't be.
  virtual bool lend_gradient(const Execution& execution) REQUIRES(compute_thread) = 0;
  // Writes block number `at` of the op, of the gradient that is handed over, as this rank's share of the mean
  // over all ranks and over `iterations`; `first`: nothing was written there before, otherwise it is added.
  virtual void write_gradient(const Execution& execution, std::size_t at, bool first, std::int32_t iterations)
      REQUIRES(compute_thread) = 0;
  virtual void read_parameter(const Execution& execution, std::size_t at) REQUIRES(compute_thread) = 0;
  // Something was written to the message: what other threads do with it comes after.
  virtual void filled(const Execution& execution) REQUIRES(compute_thread) = 0;
  // The op has ended: what this thread does with the message comes after.
  virtual void landed(const Execution& execution) REQUIRES(compute_thread) = 0;
  virtual void rescale(const Execution& execution, double factor) REQUIRES(compute_thread) = 0;
  // Nothing will use the message any more, except gradients that were put in place.
  virtual void retire(const Execution& execution) REQUIRES(compute_thread) = 0;

  // ---- applies

  // Puts reduced blocks of a tensor's gradient where the optimizer looks for it; `add`: adds them to what is
  // there, if anything is. Of a tensor that is stepped in slices not all blocks need be there: the others keep
  // what they have.
  virtual void put_gradient(std::int32_t tensor, std::span<const Part> parts, bool add)
      REQUIRES(compute_thread) = 0;
  virtual void drop_gradient(std::int32_t tensor) REQUIRES(compute_thread) = 0;
  virtual void average_parameter(const Part& part) REQUIRES(compute_thread) = 0;
  // Gradients of `tensors` are out of the optimizer's sight until they are put back, in reverse order of the
  // calls.
  virtual void set_gradients_aside(std::span<const std::int32_t> tensors) REQUIRES(compute_thread) = 0;
  virtual void put_gradients_back(std::span<const std::int32_t> tensors) REQUIRES(compute_thread) = 0;
  // Runs the optimizer, on each block as on a tensor of its own; tensors without a gradient stay as they are.
  virtual void step(const Stepped& stepped) REQUIRES(compute_thread) = 0;

  // ---- what the caller does in between

  // To a gradient since it was handed over.
  virtual Kept kept(std::int32_t tensor) const REQUIRES(compute_thread) = 0;
  // Whether a parameter was changed since it was noted, or since it was last read or averaged. One that was
  // never noted was not.
  virtual void note_parameter(std::int32_t tensor) REQUIRES(compute_thread) = 0;
  virtual bool parameter_changed(std::int32_t tensor) const REQUIRES(compute_thread) = 0;

  // ---- other ranks

  // Makes the parameters of `tensors` their mean over all ranks, equal bit for bit. Errors: any
  // std::exception.
  virtual void average_over_ranks(std::span<const std::int32_t> tensors) REQUIRES(compute_thread) = 0;
};

}  // namespace gradweave::run
