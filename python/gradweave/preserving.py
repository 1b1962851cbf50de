"""What the first iterations show of the gradients, before a plan that changes training is chosen."""

import json

import torch

from gradweave import _native, core

ITERATIONS = 12  # in which gradients are compared, before the profile; copies of them are kept meanwhile
LEAST = 5        # fewer tell nothing
ASKED = {"delayed", "local", "corrected"}  # effects of plans that the Preserver has to see


def iterations(settings, workers):
    """In how many iterations before the profile gradients are compared; 0 where no plan can come of it that changes training.
    A scheme that was asked for by name gets no more of them than `warm_up`."""
    if settings.plan is not None or workers == 1 or settings.scales:
        return 0
    if settings.scheme == "auto":
        allowed = set((settings.options or {}).get("allow", "exact").split("+"))
        return max(settings.warm_up, ITERATIONS) if allowed & ASKED else 0
    consistency = next((each["consistency"] for each in core.schemes() if each["name"] == settings.scheme), "exact")
    return settings.warm_up if consistency in ASKED and settings.warm_up >= LEAST else 0


class Preserver:
    """Of one rank. `optimizers`: the user's."""

    def __init__(self, engine, parameters, optimizers, workers):
        self._engine, self._parameters, self._optimizers, self._workers = engine, parameters, optimizers, workers
        self._sums, self._own, self._mean, self._before, self._step, self._moment = [], None, None, None, None, None
        self._estimates = None
        engine.keep_local_gradients(True)

    def backward_ended(self):
        own = self._engine.take_local_gradients()
        mean = [None if p.grad is None else p.grad.detach().clone() for p in self._parameters]
        if self._step is not None:
            self._sums.append(_native.gradient_sums(own, self._own, mean, self._mean, self._step, *self._moment))
        self._own, self._mean = own, mean
        self._before = [p.detach().clone() for p in self._parameters]

    def iteration_ended(self):
        if self._before is None:
            return
        self._step = [p.detach() - before for p, before in zip(self._parameters, self._before)]
        moments, share = _moments(self._optimizers)
        self._moment = [moments.get(p) for p in self._parameters] if moments else [], share
        self._before = None

    def stop(self, control):
        """No more gradients are wanted. Collective: the estimates are those of all ranks."""
        self._engine.keep_local_gradients(False)
        own = [number for sums in self._sums for number in sums.numbers()]
        numbers = control.means(own, "the exchange of gradients' norms")
        sums = [_native.GradientSums(*numbers[at:at + 7]) for at in range(0, len(numbers), 7)]
        if len(sums) > 1:
            self._estimates = _native.GradientEstimates(sums, self._workers)
        self._own = self._mean = self._before = self._step = self._moment = None

    def objection(self, plan, workload):
        """Why a plan should not be used, with the remedy; "" if nothing speaks against it."""
        if self._estimates is None:
            return ""
        return self._estimates.objection(json.dumps(plan), json.dumps(workload), _rule(self._optimizers))


def _moments(optimizers):
    """({parameter: what the optimizer multiplied the learning rate with in its last step}, the share of it that the gradient
    was). Nothing for optimizers other than SGD: Adam's curvature, divided by second moments that have only begun, tells
    nothing.
    """
    found, share = {}, 0.0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state, gradient = optimizer.state.get(parameter, {}), parameter.grad
                if gradient is None:
                    continue
                if not isinstance(optimizer, torch.optim.SGD):
                    return {}, 0.0
                buffer = state.get("momentum_buffer")
                if buffer is None:
                    found[parameter], share = gradient.clone(), 1.0
                elif group["nesterov"]:
                    found[parameter], share = gradient + group["momentum"] * buffer, 1.0 + group["momentum"]
                else:
                    found[parameter], share = buffer.clone(), 1.0 - group["dampening"]
    return found, share


def _rule(optimizers):
    """(momentum, dampening, nesterov) of the group with the most momentum; None where it is not known."""
    rules = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if not isinstance(optimizer, torch.optim.SGD):
                return None
            rules.append((float(group["momentum"]), float(group["dampening"]), bool(group["nesterov"])))
    return max(rules)
