// The compute thread as a capability: the thread of a rank that computes, and calls its run. What only it may call
// REQUIRES(compute_thread), what only it may touch is GUARDED_BY(compute_thread); clang's analysis checks both
// (base/mutex.h), nothing of it is left at run time. It does not look into lambdas: theirs is written beside them.
#pragma once

#include "base/mutex.h"

namespace gradweave::run {

class CAPABILITY("role") ComputeThread {};
inline constexpr ComputeThread compute_thread{};

// Whoever makes one says that the calling thread is the compute thread, or has its place while that one waits, as one of
// autograd's does in a backward.
class SCOPED_CAPABILITY AsComputeThread {
 public:
  AsComputeThread() ACQUIRE(compute_thread) {}
  ~AsComputeThread() RELEASE() {}
  AsComputeThread(const AsComputeThread&) = delete;
  AsComputeThread& operator=(const AsComputeThread&) = delete;
};

}  // namespace gradweave::run
