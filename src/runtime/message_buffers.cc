#include "runtime/message_buffers.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace gradweave::runtime {

MessageBuffers::~MessageBuffers() {
  if (!messages_) return;
  try {
    for (const Message& message : *messages_) message.result.wait(parameters_.device());
  } catch (const c10::Error&) {
    // A device that has failed uses no memory again.
  }
}

void MessageBuffers::install(std::size_t slots) {
  retired_.clear();
  pool_ = std::make_unique<BufferPool>(parameters_.plan(), parameters_.device());
  messages_ = std::make_shared<Messages>(slots);
}

at::Tensor MessageBuffers::view(const run::Part& part) const {
  const Block& block = parameters_.block(part.block);
  return (*this)[*part.from].flat.narrow(0, part.offset, block.end - block.begin);
}

bool MessageBuffers::hold(const at::Tensor& gradient) const {
  return std::ranges::any_of(*messages_, [&](const Message& message) {
    return message.flat.defined() && message.flat.is_alias_of(gradient);
  });
}

void MessageBuffers::acquire(const run::Execution& execution) {
  Message& message = (*this)[execution];
  if (message.flat.defined()) return;
  message.flat = pool_->acquire(*execution.op);
  message.lent = false;
  if (execution.op->keep_own) message.own = pool_->acquire(*execution.op);
}

void MessageBuffers::retire(const run::Execution& execution) {
  Message& message = (*this)[execution];
  if (message.flat.defined() && !message.lent) retired_.push_back({execution.op, std::move(message.flat)});
  if (message.own.defined()) retired_.push_back({execution.op, std::move(message.own)});
  message.flat.reset();
  message.own.reset();
}

// Whether the caller has kept a gradient that is a view of the buffer.
bool MessageBuffers::looked_at(const Retired& retired) const {
  std::size_t own = 1;  // `retired` itself
  std::int32_t last = -1;
  for (std::int32_t b : retired.op->blocks) {
    const std::int32_t tensor = parameters_.tensor_of_block(b);
    if (std::exchange(last, tensor) == tensor) continue;
    const at::Tensor gradient = parameters_.gradient(tensor);
    if (gradient.defined() && gradient.is_alias_of(retired.flat)) ++own;
  }
  return static_cast<std::size_t>(retired.flat.storage().use_count()) > own;
}

void MessageBuffers::release_retired() {
  for (Retired& retired : retired_) {
    if (looked_at(retired)) {
      pool_->forget(*retired.op);
      continue;
    }
    // What is written to the only buffer of an op within one iteration is there anew before the caller can change it.
    const bool at_once = pool_->single(*retired.op) && retired.op->merges == std::vector<std::int32_t>{0};
    if (retired.op->payload == Payload::kGradient && !at_once) {
      for (std::int32_t b : retired.op->blocks) {
        const NamedParameter& parameter = parameters_.named(parameters_.tensor_of_block(b));
        const at::Tensor gradient = parameter.gradient();
        if (gradient.defined() && gradient.is_alias_of(retired.flat))
          parameter.set_gradient(gradient.clone());
      }
    }
    pool_->release(*retired.op, std::move(retired.flat));
  }
  retired_.clear();
}

}  // namespace gradweave::runtime
