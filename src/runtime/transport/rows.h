// The rows of the table of transports; each is made in the file of its name.
#pragma once

#include "runtime/transport/transport.h"

namespace gradweave::runtime {

Transport all_reduce();
Transport ring();
Transport native_halves();
Transport float32_sum();

// Starts an all-reduce as the ring's two halves, of numbers `sequence` and the next.
std::unique_ptr<Pending> ring_all_reduce(const Call& call);

}  // namespace gradweave::runtime
