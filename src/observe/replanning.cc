#include <algorithm>

#include "gradweave/observe.h"

namespace gradweave {
namespace {

constexpr std::int64_t kTrial = 3;  // samples after which a plan has to be no slower than the one before
constexpr std::int64_t kMostSamples = 64;  // from a plan that was no better to the next
constexpr std::int64_t kMostDoublings = 30;

}  // namespace

void Replanning::installed(double before_ns) {
  samples_ = 0;
  changed_ = false;
  not_before_ = 0, wait_ = 1;
  anew_ = taking_back_ ? kTrial << std::min(setbacks_, kMostDoublings) : 0;
  before_ns_ = taking_back_ ? 0 : before_ns;
  taking_back_ = false;
}

Replanning::Step Replanning::sampled(bool changed, double iteration_ns, bool planning, bool proposed) {
  ++samples_;
  changed_ |= changed;
  if (planning) return Step::kNone;
  const bool anew = anew_ > 0 && samples_ >= anew_;
  if (anew || (changed_ && samples_ >= not_before_)) {
    changed_ = taking_back_ = false;
    anew_ = 0;
    return Step::kPlan;
  }
  if (proposed || samples_ != kTrial || before_ns_ == 0 || iteration_ns <= before_ns_) return Step::kNone;
  taking_back_ = true;
  ++setbacks_;
  return Step::kTakeBack;
}

void Replanning::no_better() {
  wait_ = std::min(2 * wait_, kMostSamples);
  not_before_ = samples_ + wait_;
}

}  // namespace gradweave
