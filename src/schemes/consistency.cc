// What a plan does to training, read off its applies and ops.

#include "gradweave/schemes.h"

namespace gradweave {
namespace {

// A reduced gradient is on time if no forward of its layer lies between its computation and its use.
bool on_time(const Apply& apply) {
  const std::int32_t expected = apply.at.kind == PointKind::kForwardStart ? -1 : 0;
  return apply.merges.size() == 1 && apply.merges.front() == expected;
}

}  // namespace

std::string_view name_of(Consistency consistency) {
  switch (consistency) {
    case Consistency::kExact:
      return "exact";
    case Consistency::kDelayed:
      return "delayed";
    case Consistency::kLocal:
      return "local";
    case Consistency::kCorrected:
      return "corrected";
    case Consistency::kCompressed:
      return "compressed";
  }
  return "";
}

std::vector<Consistency> effects_of(const Plan& plan) {
  bool delayed = false, local = false, compressed = plan.residual.enabled, corrected = false;
  for (const std::vector<Iteration>* iterations : {&plan.prologue, &plan.period}) {
    for (const Iteration& iteration : *iterations) {
      compressed |= !iteration.dropped.empty();
      for (const Op& op : iteration.ops) compressed |= !op.compression.name.empty();
      for (const Apply& apply : iteration.applies) {
        if (apply.source == Source::kReducedGradient) {
          (apply.correction == Correction::kLocal ? corrected : delayed) |= !on_time(apply);
        } else if (apply.source == Source::kAveragedParameter) {
          (apply.mode == Mode::kCorrect ? corrected : local) = true;
        }
      }
    }
  }
  std::vector<Consistency> effects;
  if (delayed) effects.push_back(Consistency::kDelayed);
  if (local) effects.push_back(Consistency::kLocal);
  if (compressed) effects.push_back(Consistency::kCompressed);
  if (corrected) effects.push_back(Consistency::kCorrected);
  if (effects.empty()) effects.push_back(Consistency::kExact);
  return effects;
}

}  // namespace gradweave
