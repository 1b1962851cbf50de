// The collectives of the engine on any c10d process group.
#pragma once

#include <memory>
#include <string>

#include "runtime/links.h"

namespace gradweave::runtime {

// A collective that has been started. wait() returns when the result is in place or throws what went wrong.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
};

// Starts the collective of `run` on `run.flat`; `sequence` is its number on its link, the same on all ranks.
// all_reduce: the sum. reduce_scatter: this rank's part of the sum lies at its place, the rest is undefined.
// all_gather: every rank's part at its place. Part r of n elements among P ranks is [floor(n*r/P),
// floor(n*(r+1)/P)).
std::unique_ptr<Pending> start_collective(c10d::ProcessGroup& group, OpRun& run, std::size_t sequence,
                                          const LinkOptions& options);

// Compares plan, sequence and size of the next op across ranks. Errors: RuntimeFailure naming the ranks that
// differ.
void check_before(c10d::ProcessGroup& group, const OpRun& run, std::size_t sequence, const std::string& hash,
                  const LinkOptions& options);

}  // namespace gradweave::runtime
