// Messages that show what a link takes that the plan in force leaves idle.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/device_stopwatch.h"
#include "runtime/group_channel.h"

namespace gradweave::runtime {

// One small all-reduce after another, beside the training.
class Echo {
 public:
  Echo(LinkSpec spec, LinkOptions options);
  // Starts the next one. The caller owes that taken_ns() is not 0 on any rank, and that nothing else uses the link.
  // Collective, but waits for nobody.
  void start();
  // Returns what the last one took from its start to its end, by an accelerator's events on an accelerator; 0 while it is on its way
  // or if it failed; infinite before there is one, and where a group in the processor's memory is not Gloo's. The rank that
  // started last saw the link alone.
  double taken_ns() const;

 private:
  void start_on_host();
  void start_on_device();

  LinkSpec spec_;
  LinkOptions options_;
  at::Tensor message_;
  std::shared_ptr<std::atomic<double>> taken_ns_;  // by what ends the message, which may outlive this
  std::optional<c10::Stream> stream_;              // on an accelerator
  std::unique_ptr<DeviceStopwatch> stopwatch_;
  run::Stretch last_;
};

}  // namespace gradweave::runtime
