#include "simulate/reasons.h"

#include <algorithm>

namespace gradweave {

WaitReason reason_of(const WaitRecord& wait) {
  const OpRecord& op = wait.op;
  const Nanoseconds before_start = std::clamp<Nanoseconds>(op.start - wait.begin, 0, wait.end - wait.begin);
  const Nanoseconds after_start = wait.end - wait.begin - before_start;
  if (before_start > after_start) {
    if (op.free > std::max(op.data, op.released)) return WaitReason::kLinkBusy;
    return op.released > op.data ? WaitReason::kReleasedLate : WaitReason::kDataLate;
  }
  // On a shared link: was most of its time due to the others?
  return op.end - op.start > 2 * op.alone ? WaitReason::kLinkShared : WaitReason::kOpItself;
}

std::string text_of(WaitReason reason, const PlanLink& link) {
  switch (reason) {
    case WaitReason::kLinkBusy:
      return "link " + link.name + " busy with earlier ops";
    case WaitReason::kDataLate:
      return link.level == Level::kAll ? "gradient was ready late" : "the step before it ended late";
    case WaitReason::kReleasedLate:
      return "released late";
    case WaitReason::kLinkShared:
      return "link " + link.name + " shared with other ops";
    case WaitReason::kOpItself:
      break;
  }
  return "start-up and transfer of the op itself";
}

}  // namespace gradweave
