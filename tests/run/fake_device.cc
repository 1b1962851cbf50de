#include "run/fake_device.h"

#include <stdexcept>
#include <string>

namespace gradweave::testing {

void FakeDevice::require_no_early() const {
  if (early_.empty()) return;
  throw std::logic_error("op " + std::to_string(early_[0].second) + " of iteration " +
                         std::to_string(early_[0].first) + " was launched before it was due");
}

void FakeDevice::pass(PointKind kind, std::int32_t layer, std::int64_t iteration) {
  require_no_early();
  passed_[{kind, layer}] = iteration;
}

void FakeDevice::drain() {
  require_no_early();
  draining_ = true;
}

void FakeDevice::restart() {
  draining_ = false;
  void_through_ = -1;
  passed_ = {{{PointKind::kIterationStart, 0}, 0}};
}

void FakeDevice::launched(const run::Execution& execution) {
  if (draining_ || execution.iteration <= void_through_) return;
  const Point& point = execution.op->release.point;
  const std::int64_t wanted = execution.iteration + point.iteration;
  const auto passed = passed_.find({point.kind, point.layer});
  if (wanted >= 0 && (passed == passed_.end() || passed->second < wanted))
    early_.emplace_back(execution.iteration, execution.place);
}

void FakeDevice::landed(const run::Execution& execution) {
  std::erase_if(early_,
                [&](const Place& early) { return early <= Place(execution.iteration, execution.place); });
}

}  // namespace gradweave::testing
