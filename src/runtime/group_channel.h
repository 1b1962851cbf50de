// A run's channel on a c10d process group, or on none: then only time passes.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "run/channel.h"
#include "runtime/coder.h"
#include "runtime/message.h"
#include "runtime/transport/emulated.h"

namespace gradweave::runtime {

struct LinkSpec {
  std::string name;
  c10::intrusive_ptr<c10d::ProcessGroup>
      group;                                   // of the ranks of its level; null: one rank, no communication
  std::shared_ptr<const Emulation> emulation;  // null: the link is what it is
  // Makes `control`, for messages in the processor's memory, where `group` is an accelerator's. Collective. Else null.
  std::function<c10::intrusive_ptr<c10d::ProcessGroup>()> make_control;
  c10::intrusive_ptr<c10d::ProcessGroup> control;  // null until a plan has such messages
  Level level = Level::kAll;
  int shard = 0, shards = 1;  // between nodes: this rank's of each message, and how many its node has
};

// Lets so many nanoseconds pass on the current stream of an accelerator, not on the host.
using Pause = std::function<void(std::int64_t)>;

struct LinkOptions {
  std::chrono::milliseconds timeout{300'000};  // of one op
  bool check = false;                          // compare plan, sequence and size across ranks before each op
  c10::Device device = c10::kCPU;
  bool staged = false;  // some ops of the plan are: a link's thread works and waits for them
  Pause pause;          // null: nothing does that, or no plan has needed it
};

// Returns whether ops on that link only enqueue work for a device (run::Channel).
bool returns_at_once(const LinkSpec& spec, const LinkOptions& options);

class GroupChannel : public run::Channel {
 public:
  // `hash`: of the plan. `coder`: of its compressed messages.
  GroupChannel(LinkSpec spec, LinkOptions options, std::string hash, std::shared_ptr<Messages> messages,
               std::shared_ptr<Coder> coder);
  ~GroupChannel() override;

  bool ordered_launches() const override;
  bool returns_at_once() const override;
  std::unique_ptr<Scope> enter_thread() override;
  void hold(const run::Execution& execution) override;
  void await_data(const run::Execution& execution) override;
  std::unique_ptr<run::Pending> start(const run::Execution& execution, std::size_t sequence) override;

 private:
  class Started;
  void check_before(const RunOp& op, std::size_t sequence);
  // The group for messages in the processor's memory.
  c10d::ProcessGroup& on_host() const { return spec_.control ? *spec_.control : *spec_.group; }

  LinkSpec spec_;
  LinkOptions options_;
  std::string hash_;
  std::shared_ptr<Messages> messages_;
  std::shared_ptr<Coder> coder_;
  std::optional<EmulatedLink> emulated_;
  std::optional<c10::Stream> stream_;  // of ops that return at once
};

}  // namespace gradweave::runtime
