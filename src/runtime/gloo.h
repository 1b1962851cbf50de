// Process groups on Gloo that Python's torch does not see: the engine's own, apart from the user's.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "runtime/peers.h"

namespace gradweave::runtime {

// Which network interface a group's traffic takes.
struct GlooRoute {
  std::string interface;  // by its name; else
  c10::intrusive_ptr<c10d::ProcessGroup>
      like;  // as that group on Gloo does for `device`; null: GLOO_SOCKET_IFNAME's, else
  c10::Device device = c10::kCPU;  // the host name's
};

// Returns a group of all ranks of `peers`, for tensors in the processor's memory and on the accelerator, whose ops have
// `timeout`. Collective. `store`: for this group alone. Errors: RuntimeFailure with the verdict, if some rank does not come within
// `timeout` or is lost.
// Without `peers` a rank that is lost shows at the timeout alone: std::exception then.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                       int world_size, std::chrono::milliseconds timeout,
                                                       const GlooRoute& route = {});
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(Peers& peers,
                                                       const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                       int world_size, std::chrono::milliseconds timeout,
                                                       const GlooRoute& route = {});

// Whether Gloo serves the group's collectives on tensors of `device`.
bool is_gloo(c10d::ProcessGroup& group, c10::Device device);

}  // namespace gradweave::runtime
