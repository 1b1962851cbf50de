"""What a training loop does, seen while the starter runs, and which plans support it."""

from typing import Callable, NamedTuple

import torch

from gradweave import _native


class Trait(NamedTuple):
    """Something that a loop does. `supports`: whether a plan does, by what it asks of a loop (core.demands_of)."""

    does: str
    supports: Callable[[dict[str, bool]], bool]
    remedy: str


def _updates_in_step(demands):
    return not (demands["steps_in_forward"] or demands["steps_in_backward"])


def _steps_all_at_once(demands):
    return not demands["partial_steps"]


def _steps_whole_tensors(demands):
    return not demands["slices"]


def _is_synchronous(demands):
    return demands["synchronous"]


def _leaves_momentum(demands):
    return not demands["makes_momentum"]


def _not_in_backward(demands):
    return not demands["steps_in_backward"]


# In the order in which they are told; the numbers of ranks that saw them are exchanged in this order.
TRAITS = {
    "clips": Trait("clips gradients with gradweave.clip_grad_norm_", _not_in_backward,
                   "use a scheme that steps in optimizer.step() or in the next forward, such as ddp or dear"),
    "edits": Trait("changes gradients between backward() and step(), when the plan has sent them already", _updates_in_step,
                   "clip with gradweave.clip_grad_norm_, or use a scheme that waits for the whole gradient, such as ddp"),
    "accumulates": Trait("calls backward() again, or leaves out step()", _is_synchronous,
                         "put all backward passes but the last of an iteration under model.no_sync(), or use a scheme that "
                         "updates by each iteration's own gradients, such as ddp"),
    "takes turns": Trait("steps some of the optimizers in some iterations only", _is_synchronous,
                         "step all of them in each, or use a scheme such as ddp"),
    "other optimizer": Trait("steps parameters of the model with an optimizer that gradweave.wrap() was not given",
                             _is_synchronous, "give it all of them, wrap(model, [a, b]), or use a scheme such as ddp"),
    "unknown scaler": Trait("has a loss scale that gradweave.wrap() does not know", _is_synchronous,
                            "pass scaler= to gradweave.wrap()"),
    "scales": Trait("has a loss scale, and the plan steps parameters in the backward, before all gradients are known to be "
                    "finite", _not_in_backward,
                    "use bfloat16, which needs no scaler, or another scheme"),
    "evaluates": Trait("has an optimizer that evaluates the loss many times in a step", _is_synchronous,
                       "use a scheme that updates in step() by this iteration's gradients, such as ddp"),
    "has momentum": Trait("has an optimizer with momentum, and the compressor would make momentum too", _leaves_momentum,
                          "give the optimizer none, as torch.optim.SGD without momentum, or set compressor_momentum=0"),
    "steps others": Trait("steps parameters with the same optimizer that are not the model's", _steps_all_at_once,
                          "give them to an optimizer of their own"),
    "couples": Trait("has an optimizer that can't step parts of the parameters", _steps_all_at_once,
                     "use a scheme that updates in step(), such as sequential, wfbp, ddp or horovod"),
    "couples elements": Trait("has an optimizer that can't step a part of a tensor", _steps_whole_tensors,
                              "plan with slices=off, or use another scheme"),
}


class Loop:
    """The traits of one rank's loop. `parameters` are those that are communicated."""

    def __init__(self, parameters):
        self._parameters = parameters
        self._seen = {}      # name of a trait: what it is here
        self._handed = None  # the gradients as the last backward left them, until a step
        self._bound = None   # (scheme, demands) that have been asked for

    def bind(self, scheme, demands):
        """From now on it is an error, at once, if the loop does what `demands` don't support."""
        self._bound = scheme, demands
        self._check_bound()

    def saw(self, name, detail=""):
        if self._seen.setdefault(name, detail) is detail:
            self._check_bound()

    def adopt(self, names):
        """What some other rank has seen."""
        for name in names:
            self._seen.setdefault(name, "on another rank")

    def seen(self, name):
        return name in self._seen

    def refusal(self, demands):
        """Why a plan with these demands can't serve the loop, with the remedy; "" if it can."""
        for name, trait in TRAITS.items():
            if name in self._seen and not trait.supports(demands):
                detail = self._seen[name]
                return f"the loop {trait.does}{f' ({detail})' if detail else ''}; {trait.remedy}"
        return ""

    # ---- in the starter

    def backward_started(self, reduced):
        if reduced and self._handed is not None:
            self.saw("accumulates")

    def backward_ended(self):
        self._handed = [_state_of(parameter.grad) for parameter in self._parameters]

    def clipped(self):
        """gradweave.clip_grad_norm_ has changed gradients."""
        self.saw("clips")
        self.backward_ended()

    def skipped(self):
        """The loss scale was too large: the step is left out, as it should be."""
        self._handed = None

    def stepped(self):
        """The user's step(), before it changes anything."""
        handed, self._handed = self._handed, None
        if handed is not None and handed != [_state_of(parameter.grad) for parameter in self._parameters]:
            self.saw("edits")

    def _check_bound(self):
        if self._bound is not None:
            scheme, demands = self._bound
            if reason := self.refusal(demands):
                raise _native.InvalidInput(f"scheme '{scheme}' can't serve this loop: {reason}")


def _state_of(gradient: torch.Tensor | None):
    return None if gradient is None else (gradient.data_ptr(), gradient._version)
