// Who is to blame when training can't go on.
#pragma once

#include <span>
#include <string>

#include "peers/sign.h"

namespace gradweave::peers {

inline constexpr Time kSilent = std::chrono::milliseconds(1200);    // three beats: then an op's peer is lost
inline constexpr Time kPatience = std::chrono::milliseconds(1350);  // who is lost shows within that time

// What the judge knows of a rank.
struct Seen {
  bool came = false;  // there was a sign of it
  Sign sign;
  Time heard{};  // when the sign last changed
  Time since{};  // when its state last changed
};

// Returns the verdict, one text for all ranks, or "" if nothing is wrong or it is too early to tell.
//
// - Ranks are at points from which they can't meet: one waits in a meeting that another has trained past or
//   can't reach any more. The text says where each rank is.
// - A rank is stuck. Suspects are ranks without a sign of life; else those that have ended; else those that
//   did not come to the meeting; else the one rank that is behind all others. On a tie nobody is named.
//
// A rank that was lost a moment ago is not silent yet, and is given kPatience to show; where a stuck rank is overdue, and the
// judge has been `listening` for so long, it has shown.
//
// O(ranks log ranks).
std::string judge(std::span<const Seen> ranks, Time now, Time listening);

}  // namespace gradweave::peers
