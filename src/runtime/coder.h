// The codecs of one link, and their residuals.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "run/archive.h"
#include "runtime/codec/codec.h"
#include "runtime/fence.h"
#include "runtime/state.h"

namespace gradweave::runtime {

// What is kept is kept by the blocks of a message, for an all-gather's by itself. A link's threads start messages; the compute thread calls
// leave_out(), and the rest while nothing is under way.
class Coder {
 public:
  using Blocks = std::vector<std::int32_t>;
  // Of one message: the run's iteration that lists its op, and the op's place there.
  using Name = std::pair<std::int64_t, std::int32_t>;

  // `matrices`: the plan's blocks.
  explicit Coder(std::vector<BlockShape> matrices) : matrices_(std::move(matrices)) {}

  // Starts the collective of `call` on its message, through the codec of `compression` (which gives all its
  // parameters). A message waits for the one before it of the same blocks. The coder outlives what is returned.
  std::unique_ptr<Pending> start(const Call& call, const Compression& compression, const Blocks& blocks,
                                 Name name);

  // The same without memory. Once it has been waited for, `own`, which is the message, is what of it was sent.
  std::unique_ptr<Pending> start_alone(const Call& call, const Compression& compression, const Blocks& blocks,
                                       Name name, const at::Tensor& own);

  // Nothing of this message will be applied, whether it has been sent or not: the residual is again what it
  // was before it. The caller owes this before the next message of these blocks is complete.
  void leave_out(const Blocks& blocks, Collective collective, Name name);
  // Messages to come may have the names of some before.
  void restart();

  // Calls `visit` with the residual of each list of blocks, and once more with that of its all-gathers. The current stream comes
  // after all messages.
  void visit_residuals(const std::function<void(const Blocks&, const at::Tensor&)>& visit);
  // Makes `values` (of block number `at` of the message, in its unit) part of the residual, not of all-gathers'.
  void add_residual(const Blocks& blocks, std::size_t at, const at::Tensor& values);
  // Writes or reads what is kept, under names that begin with `name`.
  void archive(run::Archive& numbers, StateTensors& tensors, const std::string& name);

 private:
  class Coded;
  static constexpr Name kNone{-1, -1};
  using Key = std::pair<Blocks, bool>;  // whether of all-gathers
  static Key key_of(const Blocks& blocks, Collective collective) {
    return {blocks, collective == Collective::kAllGather};
  }
  struct Store {
    Memory now, spare;  // spare: as it was before the last message
    Name last = kNone;  // the message that `now` is of
    std::set<Name> left_out;
    bool busy = false;  // a message is under way
    Fence used;         // by the stream that touched them last

    // The current stream touches them from here on.
    void take();
    void keep() const;
  };
  std::vector<BlockShape> matrices_of(const Blocks& blocks) const;
  const Codec& codec_of(const Compression& compression) REQUIRES(mutex_);

  std::vector<BlockShape> matrices_;
  mutable Mutex mutex_;
  CondVar idle_;
  std::map<std::pair<std::string, std::map<std::string, double>>, std::unique_ptr<Codec>> codecs_
      GUARDED_BY(mutex_);
  std::map<Key, Store> stores_ GUARDED_BY(mutex_);
};

}  // namespace gradweave::runtime
