// What the training loop reaches: hooks and points.
#include "runtime/engine.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <tuple>

#include "gradweave/error.h"

namespace gradweave::runtime {
namespace {

// Updates also take place in the caller's forward, but not in its modes.
struct PlainMode {
  c10::InferenceMode inference{false};
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
};

}  // namespace

void Engine::forward_begins() {
  const run::AsComputeThread here;
  open().trainer.come();
  open().run.forward_begins();
}

// Autograd has threads of its own for devices, where checkpointing computes forwards again and FSDP2 gathers parameters: in a
// backward nothing is due. FSDP2 may begin before the hook that says that one has begun.
bool Engine::Open::may_apply() const {
  if (!run.installed() || !run.steps().in_forward || trainer.is_here()) return true;
  if (torch::autograd::get_current_graph_task_id() != -1) return false;
  throw InvalidInput(
      "a thread other than the training thread uses the model, and the plan in force applies updates in the "
      "forward",
      "the wrapped model",
      "evaluate and save in the training thread, or hand copy.deepcopy(model), made there, to the other "
      "thread; or choose a scheme that updates in step(), such as ddp");
}

void Engine::forward_start(std::int32_t layer) {
  const run::AsComputeThread here;
  if (!open().may_apply()) return;
  const PlainMode plain;
  open().run.forward_start(layer);
}

void Engine::forward_comes(std::int32_t layer) {
  const run::AsComputeThread here;
  if (!open().may_apply()) return;
  const PlainMode plain;
  open().run.forward_comes(layer);
}

void Engine::forward_end(std::int32_t layer) {
  const run::AsComputeThread here;
  open().run.forward_end(layer);
}

void Engine::end_iteration() {
  const run::AsComputeThread here;
  open().trainer.come();
  open().run.end_iteration();
}

void Engine::skip() {
  const run::AsComputeThread here;
  open().trainer.come();
  open().run.skip();
}

void Engine::drain(const std::string& what) {
  const run::AsComputeThread here;
  open().trainer.come();
  const PlainMode plain;
  open().run.drain(what);
}

void Engine::synchronize() {
  const run::AsComputeThread here;
  if (!open().may_apply()) return;
  const PlainMode plain;
  open().run.synchronize();
  open().host.settle();
}

void Engine::Open::rest() {
  const PlainMode plain;
  run.rest();
}

void Engine::fail(const std::string& what, run::Clock::duration after, const std::string& cause) {
  const run::AsComputeThread here;
  open().run.fail(what, after, cause);
}

// ---- backward

void Engine::queue_finish() {
  torch::autograd::Engine& autograd = torch::autograd::Engine::get_default_engine();
  if (!open().has_places) {
    autograd.queue_callback([this] { finish_backward(); });
    return;
  }
  // What shards parameters may hand gradients over in callbacks of its own, which are all queued by then.
  autograd.queue_callback([this, &autograd] { autograd.queue_callback([this] { finish_backward(); }); });
}

void Engine::backward_start() {
  const run::AsComputeThread here;
  Open& open = this->open();
  if (!open.run.installed() || !open.run.communicating()) return;
  // The callback belongs to the backward that is running: a nested one, as in checkpointing, would end too
  // early.
  const int task = torch::autograd::get_current_graph_task_id();
  const std::optional<int> before = open.trainer.backward();
  if (before && open.run.in_backward() && task != *before) {
    throw InvalidInput("the backward before this one ended in an error",
                       "iteration " + std::to_string(open.run.iteration()),
                       "what it had handed over can't be taken back: restart from the last checkpoint");
  }
  open.trainer.begin_backward(task);
  queue_finish();
  open.run.backward_start();
}

void Engine::on_gradient(std::int32_t parameter) {
  const run::AsComputeThread here;
  Open& open = this->open();
  if (open.trainer.is_elsewhere()) return;  // a forked process keeps its gradients
  if (!open.run.installed()) {
    open.run.queue()->check_failure();
    if (!open.run.communicating()) return;
    throw InvalidInput(
        "its gradient came before a plan was in force",
        "parameter '" + open.host.parameters().all()[static_cast<std::size_t>(parameter)].name + "'",
        "call the model itself, model(...), not one of its methods or parts");
  }
  if (open.run.communicating() && !open.run.in_backward()) {
    open.check_hooks();
    if (!open.trainer.backward()) queue_finish();
  }
  const PlainMode plain;
  open.run.gradient(open.host.parameters().tensor_of(parameter));
  open.host.handover().let_go();
}

void Engine::Open::check_hooks() const {
  const std::int32_t lost = hooks->lost();
  if (lost < 0) return;
  throw InvalidInput("another library has replaced the hook on its gradient",
                     "parameter '" + host.parameters().all()[static_cast<std::size_t>(lost)].name + "'",
                     "register that hook before gradweave.wrap() (C++: before the Session begins)");
}

void Engine::finish_backward() {
  const run::AsComputeThread here;
  Open& open = this->open();
  open.trainer.end_backward();
  const PlainMode plain;
  open.run.finish_backward();
  open.host.handover().let_go();
}

// ---- what others ask

std::vector<std::vector<at::Tensor>> Engine::coming_gradients() {
  const run::AsComputeThread here;
  run::Run& run = open().run;
  TorchHost& host = open().host;
  if (!run.installed() || !run.reduced()) {
    throw InvalidInput("there is no gradient: no backward() since the last optimizer.step()",
                       "clip_grad_norm_", "call it between backward() and step()");
  }
  const Parameters& parameters = host.parameters();
  std::vector<std::vector<at::Tensor>> parts(parameters.all().size());
  const auto of = [&](std::int32_t tensor) -> std::vector<at::Tensor>& {
    return parts[static_cast<std::size_t>(parameters.number_of(tensor))];
  };
  const Stepped stepped = run.stepped_at_end();
  for (std::int32_t t : stepped.tensors) {
    if (const at::Tensor gradient = parameters.gradient(t); gradient.defined()) of(t) = {gradient.detach()};
  }
  for (std::int32_t b : stepped.blocks) {
    if (const at::Tensor part = host.gradient_part(b); part.defined())
      of(parameters.tensor_of_block(b)).push_back(part);
  }
  run.visit_coming([&](const run::Part& part) REQUIRES(run::compute_thread) {
    of(parameters.tensor_of_block(part.block)).push_back(host.messages().view(part));
  });
  return parts;
}

OptimizerSteps::Subset Engine::subset(std::int32_t number) const {
  const run::AsComputeThread here;
  return open().host.steps().subset(number);
}

std::vector<Slice> Engine::slices() const {
  const run::AsComputeThread here;
  const Open& open = this->open();
  std::vector<Slice> slices;
  if (!open.run.installed()) return slices;
  const RunPlan& plan = open.run.plan();
  for (std::size_t b = 0; b < plan.blocks.size(); ++b) {
    if (plan.sliced[static_cast<std::size_t>(plan.block_tensor[b])])
      slices.push_back(open.host.parameters().slice(static_cast<std::int32_t>(b)));
  }
  return slices;
}

std::vector<std::int32_t> Engine::stepped_locally() const {
  const run::AsComputeThread here;
  const Open& open = this->open();
  std::vector<std::int32_t> parameters;
  if (!open.run.installed()) return parameters;
  const std::vector<std::uint8_t>& local = open.run.plan().stepped_locally;
  for (std::size_t t = 0; t < local.size(); ++t) {
    if (local[t]) parameters.push_back(open.host.parameters().number_of(static_cast<std::int32_t>(t)));
  }
  return parameters;
}

void Engine::set_unscaler(Unscaler unscaler) {
  const run::AsComputeThread here;
  open().host.handover().loss_scale().set_unscaler(std::move(unscaler));
}

void Engine::set_pause(std::function<Pause()> make) {
  const run::AsComputeThread here;
  open().make_pause = std::move(make);
}

void Engine::set_interrupt(DeviceBackends::Interrupt interrupt) {
  open().backends->set_interrupt(std::move(interrupt));
}

void Engine::keep_local_gradients(bool on) {
  const run::AsComputeThread here;
  open().host.handover().keep_local(on);
}

std::vector<at::Tensor> Engine::take_local_gradients() {
  const run::AsComputeThread here;
  return open().host.handover().take_local();
}

Counters Engine::counters() const {
  const run::AsComputeThread here;
  Counters counters{open().run.counters()};
  counters.buffer_bytes = open().host.buffer_bytes(c10::kCPU);
  if (!device().is_cpu()) counters.buffer_bytes += open().host.buffer_bytes(device());
  return counters;
}

Timeline Engine::take_timeline() {
  const run::AsComputeThread here;
  Open& open = this->open();
  Timeline timeline{.name = "run", .origin = "measured", .spans = open.run.take_spans()};
  if (!open.run.installed()) return timeline;
  timeline.links = open.run.plan().links;
  for (const LinkSpec* link : open.links_of(open.run.plan())) {
    if (link->emulation) timeline.origin = "measured, emulated link";
  }
  for (Span& span : timeline.spans) {
    if (span.kind == SpanKind::kForward || span.kind == SpanKind::kBackward)
      span.label = open.layer_names[static_cast<std::size_t>(span.layer)];
    if (span.kind == SpanKind::kOptimizer) span.label = "optimizer";
  }
  std::ranges::sort(timeline.spans, {}, [](const Span& span) {
    return std::tuple(span.begin_ns, span.track, span.kind, span.iteration);
  });
  return timeline;
}

}  // namespace gradweave::runtime
