// Messages that show what a link takes that the plan in force leaves idle.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/group_channel.h"

namespace gradweave::runtime {

// One small all-reduce after another, beside the training. Only of tensors in the processor's memory.
class Echo {
 public:
  Echo(LinkSpec spec, LinkOptions options);
  // Starts the next one. The caller owes that taken_ns() is not 0 on any rank, and that nothing else uses the link.
  // Collective, but waits for nobody.
  void start();
  // Returns what the last one took from its start to its end, 0 while it is on its way or if it failed; infinite before
  // there is one, and where the group is not Gloo's. The rank that started last saw the link alone.
  double taken_ns() const { return *taken_ns_; }

 private:
  LinkSpec spec_;
  LinkOptions options_;
  at::Tensor message_;
  std::shared_ptr<std::atomic<double>> taken_ns_;  // by what ends the message, which may outlive this
};

}  // namespace gradweave::runtime
