#include "io/lanes.h"

#include <algorithm>

namespace gradweave {

Lanes assign_lanes(const Timeline& timeline) {
  std::vector<std::vector<Nanoseconds>> free_at(timeline.links.size() + 1);
  Lanes lanes;
  for (const Span& span : timeline.spans) {
    if (span.track < 0 || static_cast<std::size_t>(span.track) >= free_at.size()) {
      lanes.lane.push_back(-1);
      continue;
    }
    std::vector<Nanoseconds>& track = free_at[static_cast<std::size_t>(span.track)];
    auto lane = std::ranges::find_if(track, [&](Nanoseconds free) { return free <= span.begin_ns; });
    if (lane == track.end()) lane = track.insert(lane, 0);
    *lane = span.end_ns;
    lanes.lane.push_back(static_cast<std::int32_t>(lane - track.begin()));
  }
  for (const auto& track : free_at)
    lanes.count.push_back(std::max<std::int32_t>(1, static_cast<std::int32_t>(track.size())));
  return lanes;
}

}  // namespace gradweave
