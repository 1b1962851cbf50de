// Tracks whose spans overlap (ops that share a link) are drawn as several lanes.
#pragma once

#include <cstdint>
#include <vector>

#include "gradweave/timeline.h"

namespace gradweave {

struct Lanes {
  std::vector<std::int32_t> lane;   // per span, within its track
  std::vector<std::int32_t> count;  // per track: 0 is compute, 1 + k is link k; at least 1 each
};

// Puts each span into the first lane of its track that is free at its begin. O(spans * lanes).
// Spans of tracks that the timeline does not name get lane -1.
Lanes assign_lanes(const Timeline& timeline);

}  // namespace gradweave
