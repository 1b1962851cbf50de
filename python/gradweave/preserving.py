"""What the first iterations show of the gradients, before a plan that changes training is chosen; and whether later ones
still support the delay of the plan in force."""

import collections
import json

import torch

from gradweave import _native, core

ITERATIONS = 12  # in which gradients are compared, before the profile; copies of them are kept meanwhile
LEAST = 5        # fewer tell nothing
AGAIN_EVERY = 50  # iterations, where the plan in force delays gradients
LOOKS = 25        # that count together then, what was seen before the profile among them
ASKED = {"delayed", "local", "corrected"}  # effects of plans that the Preserver has to see


def iterations(settings, workers):
    """In how many iterations before the profile gradients are compared; 0 where no plan can come of it that changes training.
    A scheme that was asked for by name gets no more of them than `warm_up`."""
    if settings.plan is not None or workers == 1 or settings.scales:
        return 0
    if settings.scheme == "auto":
        allowed = set((settings.options or {}).get("allow", "exact").split("+"))
        return max(settings.warm_up, ITERATIONS) if allowed & ASKED else 0
    effect = next((each["consistency"] for each in core.schemes() if each["name"] == settings.scheme), "exact")
    return settings.warm_up if effect in ASKED and settings.warm_up >= LEAST else 0


class Preserver:
    """Of one rank. `optimizers`: the user's."""

    def __init__(self, engine, names, parameters, optimizers, workers):
        self._engine, self._optimizers, self._workers = engine, optimizers, workers
        self._names, self._parameters = names, parameters
        self._sums, self._own, self._mean, self._before, self._step, self._moment = [], None, None, None, None, None
        self._estimates, self._seen = None, collections.deque(maxlen=LOOKS)
        self._look(True)

    def _look(self, on):
        """At the gradients of the coming backwards."""
        self.looks = on
        self._engine.keep_local_gradients(on)

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
        sums = self._end(control)
        if len(sums) > 1:
            self._estimates = _native.GradientEstimates(sums, self._workers)
            self._seen.append(self._seen_in(sums))

    def _end(self, control):
        """The sums of all ranks since the beginning."""
        self._look(False)
        own = [number for sums in self._sums for number in sums.numbers()]
        numbers = control.means(own, "the exchange of gradients' norms")
        self._sums, self._own, self._mean, self._before, self._step, self._moment = [], None, None, None, None, None
        return [_native.GradientSums(*numbers[at:at + 7]) for at in range(0, len(numbers), 7)]

    def _seen_in(self, sums):
        rates = [float(group["lr"]) for optimizer in self._optimizers for group in optimizer.param_groups]
        return _native.SeenIterations(sums, max(rates))

    # ---- again, under the plan in force

    def plan_installed(self, plan, workload):
        """Some iterations of every AGAIN_EVERY are looked at if the plan delays gradients. The tensors that count are those
        whose steps all are late: a gradient's noise is in none of the steps before it."""
        if self.looks:
            self._look(False)
        late = set()
        if self._estimates is not None and _rule(self._optimizers) is not None:
            late = set(_native.late_tensors(json.dumps(plan), json.dumps(workload)))
        self._late = [number for number, name in enumerate(self._names) if name in late]
        self._plan, self._workload, self._iterations = plan, workload, 0
        self._own, self._before, self._sums = None, None, []

    def backward_ended_again(self):
        own = self._engine.take_local_gradients()
        late = [self._parameters[number] for number in self._late]
        own = [own[number].as_strided(p.size(), p.stride()) if own and own[number] is not None else None
               for number, p in zip(self._late, late)]
        now = [p.detach().clone() for p in late]
        if self._own is not None:
            rate = {p: float(group["lr"]) for optimizer in self._optimizers for group in optimizer.param_groups
                    for p in group["params"]}
            step = [after - before for after, before in zip(now, self._before)]
            moment = [each / -rate[p] if rate.get(p) else None for each, p in zip(step, late)]
            self._sums.append(_native.gradient_sums(own, self._own, own, self._own, step, moment, 0.0))
        self._own, self._before = own, now

    def iteration_ended_again(self, control):
        """Returns why the plan in force should be used no more, "" if nothing speaks against it. The same on all ranks."""
        if not self._late:
            return ""
        self._iterations += 1
        place = self._iterations % AGAIN_EVERY
        if place == 0:
            self._look(True)
        elif self.looks and place == min(len(self._plan["period"]) + 4, 20):
            sums = self._end(control)
            if any(each.step > 0 for each in sums):
                self._seen.append(self._seen_in(sums))
                self._estimates = self._estimates.with_step_seen_again(list(self._seen), self._workers)
                objection = control.from_rank_0(self.objection(self._plan, self._workload), "the Preserver's look")
                if objection:
                    self._late = []  # told once
                return objection
        return ""

    def progress(self, plan, workload):
        """How far an iteration of the plan gets beside one of plain training."""
        if self._estimates is None:
            return 1.0
        return self._estimates.progress(json.dumps(plan), json.dumps(workload), self._workers)

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
