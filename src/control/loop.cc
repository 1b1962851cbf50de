#include "control/loop.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "gradweave/error.h"

namespace gradweave::control {
namespace {

bool updates_in_step(const Demands& demands) {
  return !(demands.steps_in_forward || demands.steps_in_backward);
}
bool takes_edits(const Demands& demands) {
  return updates_in_step(demands) && (!demands.partial_steps || demands.local_steps);
}
bool steps_all_at_once(const Demands& demands) { return !demands.partial_steps; }
bool steps_whole_tensors(const Demands& demands) { return !demands.slices; }
bool is_synchronous(const Demands& demands) { return demands.synchronous(); }
bool leaves_momentum(const Demands& demands) { return !demands.makes_momentum; }
bool not_in_backward(const Demands& demands) { return !demands.steps_in_backward; }

constexpr std::array<Trait, 13> kTraits = {{
    {"clips", "clips gradients with gradweave.clip_grad_norm_ (C++: Session::clip_grad_norm)",
     not_in_backward,
     "use a scheme that steps in optimizer.step() or in the next forward, such as ddp or dear"},
    {"edits",
     "changes gradients between backward() and step(), when the plan has sent them already, or sends only a "
     "part",
     takes_edits,
     "clip with gradweave.clip_grad_norm_ (C++: Session::clip_grad_norm), or use a scheme that waits for the "
     "whole gradient, such as ddp"},
    {"steps around", "has an optimizer around another one, whose step() may read and change parameters",
     updates_in_step, "use a scheme that updates in step(), such as ddp"},
    {"accumulates", "calls backward() again, or leaves out step()", is_synchronous,
     "put all backward passes but the last of an iteration under model.no_sync() (C++: call "
     "Session::accumulate() for them), or use a scheme that "
     "updates by each iteration's own gradients, such as ddp"},
    {"takes turns", "steps some of the optimizers in some iterations only", is_synchronous,
     "step all of them in each, or use a scheme such as ddp"},
    {"other optimizer", "steps parameters of the model with an optimizer that gradweave.wrap() was not given",
     is_synchronous, "give it all of them, wrap(model, [a, b]), or use a scheme such as ddp"},
    {"unknown scaler", "has a loss scale that gradweave.wrap() does not know", is_synchronous,
     "pass scaler= to gradweave.wrap()"},
    {"scales",
     "has a loss scale, and the plan steps parameters in the backward, before all gradients are known to be "
     "finite",
     not_in_backward, "use bfloat16, which needs no scaler, or another scheme"},
    {"evaluates", "has an optimizer that evaluates the loss many times in a step", is_synchronous,
     "use a scheme that updates in step() by this iteration's gradients, such as ddp"},
    {"has momentum", "has an optimizer with momentum, and the compressor would make momentum too",
     leaves_momentum,
     "give the optimizer none, as torch.optim.SGD without momentum, or set compressor_momentum=0"},
    {"steps others", "has an optimizer that also steps parameters that are not the model's",
     steps_all_at_once, "give them to an optimizer of their own"},
    {"couples", "has an optimizer that can't step parts of the parameters", steps_all_at_once,
     "use a scheme that updates in step(), such as sequential, wfbp, ddp or horovod"},
    {"couples elements", "has an optimizer that can't step a part of a tensor", steps_whole_tensors,
     "plan with slices=off, or use another scheme"},
}};

}  // namespace

std::span<const Trait> traits() { return kTraits; }

void Loop::saw(std::string_view trait, const std::string& detail) {
  if (std::ranges::find(kTraits, trait, &Trait::name) == kTraits.end())
    throw std::logic_error("unknown name of what a loop does: '" + std::string(trait) + "'");
  if (seen_.try_emplace(std::string(trait), detail).second) check_bound();
}

void Loop::bind(const std::string& scheme, const Demands& demands) {
  bound_.emplace(scheme, demands);
  check_bound();
}

std::string Loop::refusal(const Demands& demands) const {
  for (const Trait& trait : kTraits) {
    const auto found = seen_.find(trait.name);
    if (found == seen_.end() || trait.supported(demands)) continue;
    const std::string detail = found->second.empty() ? "" : " (" + found->second + ")";
    return "the loop " + std::string(trait.does) + detail + "; " + std::string(trait.remedy);
  }
  return "";
}

void Loop::check_bound() const {
  if (!bound_) return;
  const auto& [scheme, demands] = *bound_;
  if (const std::string reason = refusal(demands); !reason.empty())
    throw InvalidInput(reason, "scheme '" + scheme + "' doesn't work with this loop");
}

}  // namespace gradweave::control
