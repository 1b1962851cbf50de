// The messages of ops: flat tensors, one for each place of the run's ring.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <optional>
#include <vector>

#include "runtime/codec/two_stages.h"
#include "runtime/fence.h"
#include "runtime/staged_gain.h"

namespace gradweave::runtime {

struct Message {
  at::Tensor flat;                     // what goes out; in the end the result
  at::Tensor own;                      // what this rank sent, if the op keeps it
  bool lent = false;                   // `flat` is a gradient itself, not one of the pool's buffers
  std::optional<GroupMessage> groups;  // in place of both: an average of parameters that is compressed
  std::unique_ptr<StagedGain> gain;    // beside them, of an op that is staged
  Fence data, result;
  std::optional<c10::Stream> timer;  // of a release with a delay
  Fence released;                    // the delay is over
};

// By the slot of an execution. The compute thread writes until the op's data are complete and reads when it
// has ended; the link works on it in between.
using Messages = std::vector<Message>;

}  // namespace gradweave::runtime
