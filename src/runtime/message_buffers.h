// The messages of the plan in force: their buffers, from the pool and back.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "run/execution.h"
#include "run/host.h"
#include "runtime/buffers.h"
#include "runtime/message.h"
#include "runtime/parameters.h"

namespace gradweave::runtime {

class MessageBuffers {
 public:
  // `parameters` must outlive it.
  explicit MessageBuffers(const Parameters& parameters) : parameters_(parameters) {}
  // The memory of ops that are under way on an accelerator is not used again before they have ended.
  ~MessageBuffers();
  MessageBuffers(const MessageBuffers&) = delete;
  MessageBuffers& operator=(const MessageBuffers&) = delete;
  // A plan comes into force, with one message for each of the run's `slots`.
  void install(std::size_t slots);

  // Links work on them too.
  const std::shared_ptr<Messages>& all() const { return messages_; }
  Message& operator[](const run::Execution& execution) const { return (*messages_)[execution.slot]; }
  // A block of a message, flat.
  at::Tensor view(const run::Part& part) const;

  // Gives the execution's message its buffers, unless it has them.
  void acquire(const run::Execution& execution);
  // Nothing will use the message any more, except gradients that are views of it.
  void retire(const run::Execution& execution);
  // At the start of a backward, after the user's zero_grad(): makes retired buffers free. A gradient that is
  // still a view of one is copied away, unless the buffer is certain to get the same gradient again. One that
  // the caller has kept is his, with the buffer.
  void release_retired();

  // Whether the gradient is a view of a message.
  bool hold(const at::Tensor& gradient) const;

  std::int64_t bytes(c10::Device on) const { return pool_ ? pool_->bytes(on) : 0; }

 private:
  struct Retired {
    const RunOp* op;
    at::Tensor flat;
  };
  bool looked_at(const Retired& retired) const;

  const Parameters& parameters_;
  std::unique_ptr<BufferPool> pool_;
  std::shared_ptr<Messages> messages_;
  std::vector<Retired> retired_;
};

}  // namespace gradweave::runtime
