// Collectives of the simulated accelerator: on a stream of their own, carried out by a group of the processor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "device/virtual_time.h"

namespace gradweave::device {

// What holds for all groups of the process.
struct Carriage {
  bool one_queue =
      false;  // a collective begins when those launched before it have ended, of other groups too
  std::optional<Cost> cost;  // of an all-reduce; reduce-scatter and all-gather take half. None: no time
  std::map<std::string, Cost> cost_of_group;  // in its place, by the group's name
};
void carry_by(const Carriage& carriage);

// Returns what was launched since the last call, as "group: collective of n bytes", in order.
std::vector<std::string> take_launches();

// Returns a backend with NCCL's semantics: a collective starts after what the current stream had been given, wait() holds the
// caller's current stream and not the host, and a group's collectives take place in the order of their launches. `processor`
// carries them out, with its bits.
c10::intrusive_ptr<c10d::Backend> make_collectives(c10::intrusive_ptr<c10d::Backend> processor, int rank,
                                                   int size);

}  // namespace gradweave::device
