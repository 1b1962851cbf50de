// Why compute waited, in words and as a small number.
#pragma once

#include <cstdint>
#include <string>

#include "gradweave/plan.h"
#include "simulate/machine.h"

namespace gradweave {

enum class WaitReason : std::uint8_t { kLinkBusy, kDataLate, kReleasedLate, kLinkShared, kOpItself };
inline constexpr std::size_t kWaitReasons = 5;

// Returns what most of the wait was due to: what kept its last op from starting, or the op's own time.
WaitReason reason_of(const WaitRecord& wait);

// Returns e.g. "link eth0 busy with earlier ops".
std::string text_of(WaitReason reason, const PlanLink& link);

}  // namespace gradweave
