// Gradients and parameters into messages, and what becomes of those.
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include "runtime/host.h"
#include "runtime/passes.h"

namespace gradweave::runtime {

bool TorchHost::begin_backward() {
  messages_.release_retired();
  held_.clear();
  for (const NamedParameter& each : parameters_.all()) {
    if (!each.place && each.gradient_is_held()) held_.insert(each.gradient().unsafeGetTensorImpl());
  }
  feedback_.begin_backward();
  anchors_.drop();
  return handover_.begin_backward();
}

bool TorchHost::lend_gradient(const run::Execution& execution) {
  at::Tensor gradient = handover_.lendable(execution.op->blocks.front());
  if (!gradient.defined()) return false;
  Message& message = messages_[execution];
  message.flat = std::move(gradient);
  message.lent = true;
  if (share_.ranks > 1) message.flat.mul_(share_.number);
  message.data.record(parameters_.device());
  return true;
}

void TorchHost::write_gradient(const run::Execution& execution, std::size_t at, bool first,
                               std::int32_t iterations) {
  messages_.acquire(execution);
  const std::int32_t block = execution.op->blocks[at];
  const Block& place = parameters_.block(block);
  const std::int64_t length = place.end - place.begin, offset = execution.op->offsets[at];
  const at::Tensor part = handover_.part(block);
  Message& message = messages_[execution];
  at::Tensor to = message.flat.narrow(0, offset, length);
  const double share = 1.0 / (share_.ranks * static_cast<double>(iterations));
  if (!part.defined()) {
    if (first) to.zero_();
  } else if (first && iterations == 1) {
    share_.ranks > 1 ? void(at::mul_out(to, part, share_.number)) : void(to.copy_(part));
  } else if (first) {
    at::mul_out(to, part, at::scalar_tensor(share, at::kDouble));
  } else {
    to.add_(part, share);
  }
  if (execution.op->keep_own) {
    at::Tensor own = message.own.narrow(0, offset, length);
    if (const at::Tensor gradient = handover_.own_part(block); !gradient.defined()) {
      if (first) own.zero_();
    } else {
      first ? own.copy_(gradient) : own.add_(gradient);
    }
  }
  message.data.record(parameters_.device());  // of this layer's stream
}

void TorchHost::read_parameter(const run::Execution& execution, std::size_t at) {
  if (!in_groups(*execution.op)) messages_.acquire(execution);
  const std::int32_t block = execution.op->blocks[at], tensor = parameters_.tensor_of_block(block);
  const std::int64_t offset = execution.op->offsets[at];
  const at::Tensor value = parameters_.part(parameters_.flat(tensor), block);
  Message& message = messages_[execution];
  if (execution.op->anchored) {
    anchors_.read(execution, at, message);
  } else if (execution.op->keep_own) {
    copy_twice(value, message.flat.narrow(0, offset, value.numel()),
               message.own.narrow(0, offset, value.numel()));
  } else {
    message.flat.narrow(0, offset, value.numel()).copy_(value);
  }
  note_parameter(tensor);
}

void TorchHost::filled(const run::Execution& execution) {
  messages_[execution].data.record(parameters_.device());
}

void TorchHost::landed(const run::Execution& execution) {
  messages_[execution].result.wait(parameters_.device());
}

void TorchHost::rescale(const run::Execution& execution, double factor) {
  messages_[execution].flat.mul_(factor);
}

void TorchHost::retire(const run::Execution& execution) {
  anchors_.retire(*execution.op, messages_[execution]);
  messages_.retire(execution);
}

}  // namespace gradweave::runtime
