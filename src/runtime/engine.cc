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
  trainer_ = std::this_thread::get_id();
  run_.forward_begins();
}

// Updates that are on their way are the training thread's to apply: it may be about to. Autograd has threads of its own for
// devices, where checkpointing computes forwards again: in a backward nothing is due.
bool Engine::may_apply() const {
  if (!run_.installed() || !run_.steps_in_forward() || trainer_.load() == std::this_thread::get_id())
    return true;
  if (armed_) return false;
  throw InvalidInput(
      "another thread than the one that trains uses the model, and updates under the plan in force are "
      "applied in "
      "its forward",
      "the wrapped model",
      "evaluate and save in the training thread, or hand copy.deepcopy(model), made there, to the other "
      "thread; or "
      "choose a scheme that updates in step(), such as ddp");
}

void Engine::forward_start(std::int32_t layer) {
  if (!may_apply()) return;
  const PlainMode plain;
  run_.forward_start(layer);
}

void Engine::drain(const std::string& what) {
  trainer_ = std::this_thread::get_id();
  const PlainMode plain;
  run_.drain(what);
}

void Engine::synchronize() {
  if (!may_apply()) return;
  const PlainMode plain;
  run_.synchronize();
}

void Engine::rest() {
  const PlainMode plain;
  run_.rest();
}

// ---- backward

void Engine::queue_finish() {
  torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_backward(); });
}

void Engine::backward_start() {
  if (!run_.installed() || !run_.communicating()) return;
  // The callback belongs to the backward that is running: a nested one, as in checkpointing, would end too
  // early.
  const int task = torch::autograd::get_current_graph_task_id();
  if (armed_ && run_.in_backward() && task != armed_task_) {
    throw InvalidInput("the backward before this one ended in an error",
                       "iteration " + std::to_string(run_.iteration()),
                       "what it had handed over can't be taken back: restart from the last checkpoint");
  }
  armed_ = true;
  armed_task_ = task;
  queue_finish();
  run_.backward_start();
}

void Engine::on_gradient(std::int32_t parameter) {
  if (fork_generation() != generation_) return;  // a forked process keeps its gradients
  if (!run_.installed()) {
    run_.queue().check_failure();
    if (!run_.communicating()) return;
    throw InvalidInput("its gradient came before a plan was in force",
                       "parameter '" + host_.parameters()[static_cast<std::size_t>(parameter)].name + "'",
                       "call the model itself, model(...), not one of its methods or parts");
  }
  ready_ns_[static_cast<std::size_t>(parameter)] = run::ns_of(run::Clock::now());
  if (run_.communicating() && !run_.in_backward()) {
    check_hooks();
    if (!armed_) queue_finish();
  }
  const PlainMode plain;
  run_.gradient(host_.tensor_of(parameter));
  host_.let_go();
}

void Engine::check_hooks() const {
  const std::int32_t lost = hooks_->lost();
  if (lost < 0) return;
  throw InvalidInput("another library has replaced the hook on its gradient",
                     "parameter '" + host_.parameters()[static_cast<std::size_t>(lost)].name + "'",
                     "register that hook before gradweave.wrap()");
}

void Engine::finish_backward() {
  armed_ = false;
  const PlainMode plain;
  run_.finish_backward();
  host_.let_go();
}

// ---- what others ask

std::vector<std::vector<at::Tensor>> Engine::coming_gradients() {
  if (!run_.installed() || !run_.reduced()) {
    throw InvalidInput("there is no gradient: no backward() since the last optimizer.step()",
                       "clip_grad_norm_", "call it between backward() and step()");
  }
  std::vector<std::vector<at::Tensor>> parts(host_.parameters().size());
  const auto of = [&](std::int32_t tensor) -> std::vector<at::Tensor>& {
    return parts[static_cast<std::size_t>(host_.parameter_of(tensor))];
  };
  const Stepped stepped = run_.stepped_at_end();
  for (std::int32_t t : stepped.tensors) {
    if (const at::Tensor& gradient = host_.parameter(t).grad(); gradient.defined())
      of(t) = {gradient.detach()};
  }
  for (std::int32_t b : stepped.blocks) {
    if (const at::Tensor part = host_.gradient_part(b); part.defined())
      of(run_.calendar().block_tensor[static_cast<std::size_t>(b)]).push_back(part);
  }
  run_.visit_coming([&](const run::Part& part) {
    of(run_.calendar().block_tensor[static_cast<std::size_t>(part.block)]).push_back(host_.view(part));
  });
  return parts;
}

std::vector<TorchHost::Slice> Engine::slices() const {
  std::vector<TorchHost::Slice> slices;
  if (!run_.installed()) return slices;
  const Calendar& calendar = run_.calendar();
  for (std::size_t b = 0; b < calendar.blocks.size(); ++b) {
    if (calendar.sliced[static_cast<std::size_t>(calendar.block_tensor[b])])
      slices.push_back(host_.slice(static_cast<std::int32_t>(b)));
  }
  return slices;
}

std::vector<std::int32_t> Engine::stepped_locally() const {
  std::vector<std::int32_t> parameters;
  if (!run_.installed()) return parameters;
  const std::vector<std::uint8_t>& local = run_.calendar().stepped_locally;
  for (std::size_t t = 0; t < local.size(); ++t) {
    if (local[t]) parameters.push_back(host_.parameter_of(static_cast<std::int32_t>(t)));
  }
  return parameters;
}

Counters Engine::counters() const {
  Counters counters{run_.counters()};
  counters.buffer_bytes = host_.buffer_bytes();
  return counters;
}

Timeline Engine::take_timeline() {
  Timeline timeline{.name = "run", .origin = "measured", .spans = run_.take_spans()};
  if (!run_.installed()) return timeline;
  timeline.links = run_.calendar().links;
  for (const LinkSpec* spec : specs_of(run_.calendar())) {
    if (spec->emulation) timeline.origin = "measured, emulated link";
  }
  for (Span& span : timeline.spans) {
    if (span.kind == SpanKind::kForward || span.kind == SpanKind::kBackward)
      span.label = layer_names_[static_cast<std::size_t>(span.layer)];
    if (span.kind == SpanKind::kOptimizer) span.label = "optimizer";
  }
  std::ranges::sort(timeline.spans, {}, [](const Span& span) {
    return std::tuple(span.begin_ns, span.track, span.kind, span.iteration);
  });
  return timeline;
}

}  // namespace gradweave::runtime
