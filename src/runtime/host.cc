// Plans come into force; gradients are put in place, stepped and averaged.
#include "runtime/host.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "runtime/fence.h"
#include "runtime/passes.h"

namespace gradweave::runtime {

Share::Share(int of) : ranks(of), number(at::scalar_tensor(1.0 / of, at::kDouble)) {
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
}

TorchHost::TorchHost(std::vector<NamedParameter> parameters, c10::intrusive_ptr<c10d::ProcessGroup> control,
                     std::shared_ptr<Peers> peers, int world_size, const LinkOptions& options,
                     Stepper stepper)
    : parameters_(std::move(parameters)),
      share_(world_size),
      versions_(parameters_),
      handover_(parameters_, versions_, options.check),
      feedback_(parameters_, world_size),
      messages_(parameters_),
      anchors_([this](std::int32_t tensor) { return parameters_.flat(tensor); }),
      steps_(parameters_, std::move(stepper)),
      exchanges_(std::move(control), std::move(peers), options.timeout) {}

void TorchHost::install(const RunPlan& plan, std::size_t slots, std::vector<std::int32_t> parameter_of,
                        c10::intrusive_ptr<c10d::ProcessGroup> group, int rank) {
  exchanges_.install(std::move(group));
  parameters_.install(plan, std::move(parameter_of));
  messages_.install(slots);
  anchors_.install(plan, slots, parameters_.numbers(), share_.ranks, rank, parameters_.device());
  steps_.install();
  versions_.install(plan.index.tensors.size());
  feedback_.install(exchanges_.averages());
}

bool TorchHost::is_callers(const NamedParameter& named, const at::Tensor& gradient) const {
  return !named.place && gradient.defined() && gradient.has_storage() &&
         (gradient.storage().use_count() > 1 || held_.contains(gradient.unsafeGetTensorImpl())) &&
         !messages_.hold(gradient);
}

void TorchHost::take_gradient(std::int32_t tensor, run::Gradient gradient) {
  const NamedParameter& named = parameters_.named(tensor);
  if (gradient == run::Gradient::kHeld && !is_callers(named, named.gradient()))
    named.set_gradient(named.gradient().clone());  // it may be a view of the message that it is written to
  handover_.take(tensor, gradient);
}

void TorchHost::put_gradient(std::int32_t tensor, std::span<const run::Part> parts, bool add) {
  const NamedParameter& named = parameters_.named(tensor);
  const at::Tensor& parameter = named.tensor;
  const bool held = named.gradient_is_held();
  const at::Tensor before = named.gradient();
  const RunPlan& plan = parameters_.plan();
  add &= before.defined();
  const auto has_it = [&](const run::Part& part) REQUIRES(run::compute_thread) {
    return before.defined() && before.is_alias_of(messages_[*part.from].flat);
  };
  const bool callers = std::ranges::none_of(parts, has_it) && is_callers(named, before);
  if (parts.size() == 1 && !add && !callers && plan.block_whole[static_cast<std::size_t>(parts[0].block)]) {
    const at::Tensor& flat = messages_[*parts[0].from].flat;
    if (before.defined() && before.data_ptr() == flat.data_ptr() && flat.numel() == before.numel()) return;
    // Detached: torch::optim::Optimizer::zero_grad() refuses views.
    named.set_gradient(
        flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset() + parts[0].offset)
            .detach());
    return;
  }
  if (!before.defined() || (!callers && (before.strides() != parameter.strides() || (!add && held)))) {
    const at::Tensor fresh =
        at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().requires_grad(false));
    const bool all = parts.size() == plan.blocks_of_tensor[static_cast<std::size_t>(tensor)].size();
    if (add || !all) before.defined() ? fresh.copy_(before) : fresh.zero_();
    named.set_gradient(fresh);
  }
  const at::Tensor target = parameters_.flat_gradient(tensor);  // a copy where the caller's has other strides
  keep_for_stream(target);                                      // of autograd's, on the layer's own
  for (const run::Part& part : parts) {
    at::Tensor to = parameters_.part(target, part.block);
    add ? to.add_(messages_.view(part)) : to.copy_(messages_.view(part));
  }
  if (callers && !target.is_alias_of(before)) {
    before.detach().copy_(target.as_strided(parameter.sizes(), parameter.strides()));
    keep_for_stream(before);
  }
  // Another part may have been handed over: this is no change of the caller's.
  if (aside_.empty()) versions_.hand_over(tensor);
}

at::Tensor TorchHost::gradient_part(std::int32_t block) const {
  const std::int32_t tensor = parameters_.tensor_of_block(block);
  if (!parameters_.gradient(tensor).defined()) return {};
  return parameters_.part(parameters_.flat_gradient(tensor), block);
}

void TorchHost::drop_gradient(std::int32_t tensor) { parameters_.named(tensor).set_gradient({}); }

void TorchHost::average_parameter(const run::Part& part) {
  const std::int32_t tensor = parameters_.tensor_of_block(part.block);
  at::Tensor to = parameters_.part(parameters_.flat(tensor), part.block);
  Message& message = messages_[*part.from];
  if (part.from->op->anchored) {
    anchors_.land(part, message);
  } else if (part.from->op->keep_own) {
    add_correction(to, messages_.view(part), message.own.narrow(0, part.offset, to.numel()), share_.ranks);
  } else {
    at::mul_out(to, messages_.view(part), share_.number);
  }
  note_parameter(tensor);
}

void TorchHost::set_gradients_aside(std::span<const std::int32_t> tensors) {
  for (std::int32_t t : tensors) {
    aside_.push_back(parameters_.gradient(t));
    parameters_.named(t).set_gradient({});
  }
}

void TorchHost::put_gradients_back(std::span<const std::int32_t> tensors) {
  for (std::size_t i = tensors.size(); i-- > 0;) {
    parameters_.named(tensors[i]).set_gradient(std::move(aside_.back()));
    aside_.pop_back();
  }
}

void TorchHost::average_over_ranks(std::span<const std::int32_t> tensors) {
  anchors_.settle();
  anchors_.return_rests();
  if (!exchanges_.averages()) return;  // a rank that is played
  for (std::size_t n = 0; std::int32_t t : tensors)
    exchanges_.average(parameters_.flat(t), share_.number, n++);
  anchors_.raise();
}

}  // namespace gradweave::runtime
