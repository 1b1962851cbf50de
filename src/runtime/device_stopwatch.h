// The stopwatch of parameters' device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "run/stopwatch.h"

namespace gradweave::runtime {

// Moments are those of an accelerator's streams, since the host runs ahead: events on the stream that is current, which are used
// again once they are forgotten.
class DeviceStopwatch final : public run::Stopwatch {
 public:
  explicit DeviceStopwatch(c10::Device device) : device_(device) {}

  bool of_device() const override { return true; }
  std::int64_t now() override;
  bool passed(std::int64_t moment) const override { return event_of(moment).query(); }
  void await(std::int64_t moment) const override { event_of(moment).synchronize(); }
  std::int64_t between(std::int64_t begin, std::int64_t end) const override;
  void forget(std::int64_t moment) override;
  void share(std::int64_t moment) override { ++mark_of(moment).owners; }

 private:
  struct Mark {
    std::optional<c10::Event> event;  // none: forgotten
    int owners = 1;
  };
  Mark& mark_of(std::int64_t moment) { return marks_[static_cast<std::size_t>(moment - first_)]; }
  const c10::Event& event_of(std::int64_t moment) const {
    return *marks_[static_cast<std::size_t>(moment - first_)].event;
  }

  c10::Device device_;
  std::deque<Mark> marks_;  // of moments from `first_` on
  std::int64_t first_ = 1;
  std::vector<c10::Event> spare_;
};

// Returns the stopwatch for compute on `device`.
std::unique_ptr<run::Stopwatch> stopwatch_of(c10::Device device);

}  // namespace gradweave::runtime
