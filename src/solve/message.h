// A fused message that a planner has decided on.
#pragma once

#include <vector>

#include "gradweave/cost.h"

namespace gradweave {

struct Message {
  std::vector<Slice> slices;
};

}  // namespace gradweave
