// What codecs need of a group besides the collectives of plans.
#pragma once

#include "runtime/transport/transport.h"

namespace gradweave::runtime {

// An op takes several collectives at most so many times: each has a sequence number of its own if an op's is a
// multiple of this.
inline constexpr std::size_t kCollectivesPerOp = 4;

// Starts an exchange in which rank p gets part p of every rank's call.flat: they arrive in `arrived`, contiguous, one after
// another in the order of ranks. It moves what a reduce-scatter does.
std::unique_ptr<Pending> exchange(const Call& call, const at::Tensor& arrived);

}  // namespace gradweave::runtime
