"""The user's step(), of one or of several optimizers, and what the engine steps in its place."""

import contextlib
import json

import torch

from gradweave import _native
from gradweave.agreement import has_mean
from gradweave.proofs import prove_partial_steps, prove_slices
from gradweave.sharding import beside, local_of
from gradweave.stepping import Stepper, needs_closure


STATES = "the average of optimizers' states"


class Updates:
    """All optimizers of one job. The update takes place once each of them has been stepped; where `.grad` holds the reduced
    gradient already, each steps its own part in its step(), as with DistributedDataParallel.

    `parameters` are the engine's, in its order; `excluded`, and parameters that are not the model's, are stepped in step() by
    the gradient that is there.
    """

    def __init__(self, optimizers, parameters, excluded, loop, starts_synchronous):
        self._optimizer_of = {parameter: optimizer for optimizer in optimizers for group in optimizer.param_groups
                              for parameter in group["params"]}
        known = {*parameters, *excluded}
        others = [p for p in self._optimizer_of if p.requires_grad and p.numel() > 0 and p not in known]
        apart = excluded + others
        self._steppers = {optimizer: Stepper(optimizer, type(optimizer), parameters + apart) for optimizer in optimizers}
        self._parameters, self._loop = parameters, loop
        self._apart = range(len(parameters), len(parameters) + len(apart))
        self._steps_others = bool(others)
        self.engine = None
        self._starts_synchronous = starts_synchronous  # until a plan is in force, which comes with the first forward
        self._stepped = set()  # optimizers, since the last iteration's end
        self._last = None      # the stepper whose step ends the iteration and is still to be done
        self._begun_hooks = []  # steppers of which hooks before a step ran

    @property
    def optimizers(self):
        return list(self._steppers)

    def apart(self, optimizer):
        """What this optimizer steps besides the engine's parameters: those of wrap(exclude=), and those of no model."""
        apart = self._steppers[optimizer].parameters[self._apart.start:]
        return [parameter for parameter in apart if self._optimizer_of.get(parameter) is optimizer]

    @property
    def begun(self):
        """Whether some optimizers have been stepped in this iteration, and not all."""
        return bool(self._stepped)

    def step(self, optimizer, closure):
        """(what the closure returned, whether the iteration ended)."""
        engine, stepper = self.engine, self._steppers[optimizer]
        if closure is None and engine.installed and engine.synchronous:
            self._loop.stepped()
        others = set(self._steppers) - self._stepped - {optimizer}
        synchronous = engine.synchronous if engine.installed else self._starts_synchronous
        result = None
        if closure is not None and not synchronous:
            with torch.enable_grad():
                result = closure()
            synchronous = engine.synchronous  # the first forward has put a plan in force
            if not (synchronous and needs_closure(stepper.kind)):
                closure = None
        if synchronous and closure is None and engine.reduced and not others:
            self._last = stepper
        elif synchronous:
            of_closure = stepper.step_all(self._watched(closure)) if closure else self._step_all(stepper)
            result = result if closure is None else of_closure
        elif engine.reduced:
            self._step_in_parts(optimizer, stepper)
        else:
            self._check_no_gradient()
            stepper.run_pre_hooks()
            stepper.run_post_hooks()
        return result, self._count(optimizer)

    def leave_out(self, optimizer):
        """In place of its step(). Returns whether the iteration ended."""
        if self.engine.steps_in_forward:
            self._steppers[optimizer].freeze_hyperparameters()
        return self._count(optimizer)

    def _count(self, optimizer):
        """It has been stepped, or its step left out. Returns whether the iteration ended."""
        if not self.engine.reduced:
            return False
        self._stepped.add(optimizer)
        if self._stepped != set(self._steppers):
            return False
        self.end_iteration()
        return True

    def end_iteration(self, skip=False):
        """Ends the engine's iteration; what was not stepped stays as it is. `skip`: its gradients are dropped."""
        try:
            if skip:
                self.engine.skip()
            else:
                self.engine.end_iteration()
            if not self.engine.synchronous:
                self._run_hooks()
        finally:
            self._stepped, self._last = set(), None
            self._begun_hooks = []

    def step_subset(self, subset):
        """The engine's call: every parameter of the subset has its gradient in place."""
        if self.engine.synchronous:
            if self._last is not None:
                self._step_all(self._last)
            return
        whole = subset == 0 and not self.engine.partial_steps and not self._apart
        for stepper in self._steppers.values():
            if whole and not stepper.of_whole_batch:
                stepper.step_bare()
            else:
                stepper.step_subset(subset, lambda: self.engine.subset(subset))
                stepper.step_slices(subset, lambda: self.engine.subset_slices(subset))

    def plan_installed(self, moments):
        """Subsets have new meanings. `moments`: of Adam, where ranks step by parts of a batch; None: torch's."""
        parts = self.engine.stepped_locally if moments else ()
        for stepper in self._steppers.values():
            stepper.set_plan(parts, moments, self.engine.slices)

    @property
    def of_whole_batch(self):
        """Whether Adam's steps on parts of the batch are made as long as those of the whole."""
        return any(stepper.of_whole_batch for stepper in self._steppers.values())

    def average_states(self, numbers, control):
        """What optimizers keep of these parameters (by number) becomes the mean over the ranks: they stepped on their own, and
        will step alike. A rank that keeps nothing of one counts as zeros. Collective."""
        kept = {}
        for number in numbers:
            state = self.state_of(self._parameters[number])
            kept |= {(number, name): (state, value) for name, value in state.items()
                     if torch.is_tensor(value) and has_mean(value)}
        shapes = {f"{number} {name}": [list(local_of(value).shape), str(value.dtype)]
                  for (number, name), (_, value) in kept.items()}
        posts = control.of_members(control.peers.agree(STATES, json.dumps(shapes), control.timeout_s))
        everybodys = list(map(json.loads, posts))
        values = []
        for key, (shape, dtype) in sorted({key: how for each in everybodys for key, how in each.items()}.items()):
            number, name = key.split(" ", 1)
            parameter = self._parameters[int(number)]
            state, value = kept.get((int(number), name), (None, None))
            if value is None:
                value = torch.zeros(shape, dtype=getattr(torch, dtype.removeprefix("torch.")),
                                    device=parameter.device if shape else "cpu")
                self._optimizer_of[parameter].state[parameter][name] = value = beside(value, parameter)
            values.append(local_of(value))
        control.average(values, STATES)

    def freeze_hyperparameters(self):
        for stepper in self._steppers.values():
            stepper.freeze_hyperparameters()

    @contextlib.contextmanager
    def of(self, engine):
        """In this context the steps are another engine's."""
        before, self.engine = self.engine, engine
        try:
            yield
        finally:
            self.engine = before

    def state_of(self, parameter):
        """What its optimizer keeps of it."""
        optimizer = self._optimizer_of.get(parameter)
        return optimizer.state.get(parameter, {}) if optimizer else {}

    def set_state(self, parameter, state):
        optimizer = self._optimizer_of.get(parameter)
        if optimizer is None:
            return
        optimizer.state.pop(parameter, None)
        if state:
            optimizer.state[parameter] = state
        self._steppers[optimizer].forget()

    def forget(self, optimizer):
        """As Stepper.forget()."""
        self._steppers[optimizer].forget()

    def look_at_optimizers(self):
        """Tells the loop what these optimizers can't support. Takes a few steps of each on copies of small parameters."""
        if self._steps_others:
            self._loop.saw("steps others")
        for stepper in self._steppers.values():
            if needs_closure(stepper.kind):
                self._loop.saw("evaluates", f"{stepper.kind.__name__} evaluates the loss many times")
            if stepper.has_momentum:
                self._loop.saw("has momentum", stepper.kind.__name__)
            if reason := prove_partial_steps(stepper):
                self._loop.saw("couples", reason)
            if reason := prove_slices(stepper):
                self._loop.saw("couples elements", reason)

    def _step_all(self, stepper):
        """The loop sees what the user's hooks before the step do to gradients."""
        if not stepper.has_pre_hooks:
            return stepper.step_all()
        before = self._loop.gradients()
        last = stepper.optimizer.register_step_pre_hook(lambda *_: self._loop.hooked(before))
        try:
            return stepper.step_all()
        finally:
            last.remove()

    def _watched(self, closure):
        def call():
            result = closure()
            self._loop.stepped()
            return result
        return call

    def _run_hooks(self):
        # Wherever and however often parts were stepped: once for each of the user's steps.
        for stepper in self._begun_hooks:
            stepper.run_post_hooks()

    def _check_no_gradient(self):
        if any(parameter.grad is not None for parameter in self._parameters):
            raise _native.InvalidInput("optimizer.step(): no backward was communicated since the last one, and the plan in "
                                       "force can't use a gradient of this rank alone; put one backward() outside "
                                       "no_sync() before each step()")

    def _step_in_parts(self, optimizer, stepper):
        """The user's step() where the engine steps the parts at the points of its plan."""
        if optimizer in self._stepped:
            raise _native.InvalidInput("optimizer.step(): called twice before another optimizer's; the plan in force updates "
                                       "once all of them have been stepped")
        if self.engine.steps_in_backward and (name := stepper.changed()):
            raise _native.InvalidInput(f"optimizer.step(): '{name}' was changed after backward() began, but the plan in "
                                       "force has stepped there; change it before backward() or after step()")
        if self.engine.steps_in_forward:
            stepper.freeze_hyperparameters()
        stepper.run_pre_hooks()
        self._begun_hooks.append(stepper)
        if self._apart:
            stepper.step_subset("apart", lambda: self._apart)
