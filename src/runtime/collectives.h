// The collectives of the engine on any c10d process group.
#pragma once

#include <memory>
#include <string>

#include "runtime/links.h"
#include "runtime/transport/transport.h"

namespace gradweave::runtime {

// Starts the collective of `run` on `run.flat`; `sequence` is its number on its link, the same on all ranks.
std::unique_ptr<Pending> start_collective(c10d::ProcessGroup& group, OpRun& run, std::size_t sequence,
                                          const LinkOptions& options);

// Compares plan, sequence and size of the next op across ranks. Errors: RuntimeFailure naming the ranks that
// differ.
void check_before(c10d::ProcessGroup& group, const OpRun& run, std::size_t sequence, const std::string& hash,
                  const LinkOptions& options);

}  // namespace gradweave::runtime
