"""Steps of the user's own optimizer, on all parameters or on some of them."""

import copy
import inspect
from collections import defaultdict

import torch
from torch.optim import optimizer as torch_optimizer

from gradweave import moments, slices
from gradweave.slices import Slice


NEW_ONES = 256  # after so many, those that were not asked for meanwhile are dropped


class Recent:
    """Values that are made once, as long as they are asked for now and then."""

    def __init__(self):
        self._now, self._before, self._made = {}, {}, 0

    def get(self, key, make):
        if key in self._now:
            return self._now[key]
        value = self._before.pop(key, None)
        if value is None:
            value = make()
            self._made += 1
            if self._made % NEW_ONES == 0:
                self._now, self._before = {}, self._now
        self._now[key] = value
        return value


class Stepper:
    """Runs an optimizer's own step on subsets of its parameters, bit for bit what a full step does to them.

    For each subset there is a cached twin: a shallow copy with narrowed param_groups and the same state, refreshed
    before each use. `kind` is the optimizer's own class, under the wrapper's; `parameters` are the session's, in its
    order, of which the optimizer has some.
    """

    def __init__(self, optimizer, kind, parameters):
        self.optimizer, self.kind, self.parameters = optimizer, kind, parameters
        self._bare_step = _without_hooks(kind.step)
        self._parts, self._moments, self._cuts = set(), None, None  # of no plan yet
        self.forget()

    def set_plan(self, parts, moments, cuts):
        """Subsets have new meanings. The parameters at the places `parts` are stepped by gradients of one of the parts of a
        batch, Adam's as `moments` says; `cuts` are all slices that are stepped as parameters of their own, (place, begin,
        end)."""
        self._parts, self._moments = {id(self.parameters[place]) for place in parts}, moments
        self._cuts = defaultdict(list)
        for place, begin, end in cuts:
            self._cuts[self.parameters[place]].append((begin, end))
        self.forget()

    def _is_part(self, group, parameter):
        return id(parameter) in self._parts and moments.serves(self.kind, group) and not parameter.is_complex()

    @property
    def has_momentum(self):
        """Whether the optimizer averages gradients over iterations, by what its class calls it."""
        return any(group.get("momentum") or "betas" in group or "beta1" in group for group in self.optimizer.param_groups)

    def step_all(self, closure=None):
        return self.kind.step(self.optimizer, closure) if closure else self.kind.step(self.optimizer)

    def step_bare(self):
        """As step_all(), without the hooks."""
        self._bare_step(self.optimizer)

    def step_subset(self, key, members):
        """Step those parameters alone that are this optimizer's among `members()`: places in `parameters`, always the
        same for a `key`."""
        twin, kept = self._twins.get(key, lambda: self._make(members()))
        if kept:
            twin.state = self.optimizer.state
            self._step(twin, kept)

    def step_slices(self, key, places):
        """Step the slices `places()`, each (place in `parameters`, begin, end), as parameters of their own; always the same
        for a `key`. Where a parameter has no gradient they stay as they are."""
        def make():
            return self._make_slices(places())

        twin, kept, parts = self._twins.get((key, "slices"), make)
        if any(part.moved for part in parts):
            self._twins, self._known_slices = Recent(), {}
            twin, kept, parts = self._twins.get((key, "slices"), make)
        if not kept:
            return
        twin.state = defaultdict(dict)
        for part in parts:
            gradient = part.parameter.grad
            part.view.grad = None if gradient is None else part.of(gradient)
            twin.state[part.view] = part.state
        self._step(twin, kept)
        for part in parts:
            part.view.grad, part.state = None, twin.state[part.view]
            part.give_state(self.optimizer.state)

    def _step(self, twin, kept):
        optimizer = self.optimizer
        groups = self._hyperparameters or optimizer.param_groups
        for group, (source, pieces, of_whole_batch) in zip(twin.param_groups, kept):
            tensors = group["params"]
            group.update(self._moments.before_step(groups[source], pieces) if of_whole_batch else groups[source])
            group["params"] = tensors
        for name in ("grad_scale", "found_inf"):  # GradScaler hands them to fused optimizers this way
            if hasattr(optimizer, name):
                setattr(twin, name, getattr(optimizer, name))
            elif hasattr(twin, name):
                delattr(twin, name)
        before = [dict(group) for group in twin.param_groups]
        self._bare_step(twin)
        for (source, *_), group, old in zip(kept, twin.param_groups, before):
            # What the optimizer itself writes into a group, a step count for instance, goes back.
            for name, value in group.items():
                if old.get(name) is not value:
                    optimizer.param_groups[source][name] = value
                    self._own_names.add(name)

    @property
    def has_pre_hooks(self):
        """Whether there are hooks of the user's, besides Gradweave's own, which looks at every optimizer."""
        return any(not hasattr(hook, "_gradweave_own") for table in self._pre_hooks() for hook in table.values())

    def _pre_hooks(self):
        return torch_optimizer._global_optimizer_pre_hooks, getattr(self.optimizer, "_optimizer_step_pre_hooks", {})

    def run_pre_hooks(self):
        """The user's hooks around step(), as run_post_hooks(): the engine's steps have none, so that they run once for each of
        the user's steps."""
        self._run(*self._pre_hooks())

    def run_post_hooks(self):
        self._run(getattr(self.optimizer, "_optimizer_step_post_hooks", {}), torch_optimizer._global_optimizer_post_hooks)

    def _run(self, *tables):
        for hook in [hook for table in tables for hook in table.values()]:
            hook(self.optimizer, (), {})

    def _make(self, members):
        wanted = {id(self.parameters[place]): place for place in members}
        return self._make_twin(lambda p: [(wanted[id(p)], 0, p)] if id(p) in wanted else [])

    def _make_slices(self, places):
        wanted = defaultdict(list)
        for place, begin, end in places:
            wanted[id(self.parameters[place])].append((place, begin, end))
        made = []

        def views(parameter):
            own = [(place, self._slice(parameter, begin, end)) for place, begin, end in wanted[id(parameter)]]
            made.extend(part for _, part in own)
            return [(place, part.begin, part.view) for place, part in own]

        return *self._make_twin(views), made

    def _slice(self, parameter, begin, end):
        place = id(parameter), begin, end
        if place not in self._known_slices:
            self._known_slices[place] = Slice(parameter, begin, end)
            self._known_slices[place].take_state(self.optimizer.state)
        return self._known_slices[place]

    def _make_twin(self, pieces_of):
        """`pieces_of`: what is stepped of a parameter, [(place, begin, tensor)]."""
        twin = twin_of(self.optimizer, self.kind)
        groups, kept = [], []
        for number, group in enumerate(self.optimizer.param_groups):
            for of_whole_batch in (False, True):
                pieces = [piece for p in group["params"] if self._is_part(group, p) == of_whole_batch
                          for piece in pieces_of(p)]
                if pieces:
                    groups.append({**group, "params": [tensor for _, _, tensor in pieces]})
                    kept.append((number, pieces, of_whole_batch))
        twin.param_groups = groups
        return twin, kept

    def forget(self):
        """The optimizer's groups or state were replaced, or subsets have new meanings."""
        self._twins = Recent()
        self._known_slices = {}  # by place: one slice may be in several subsets
        if self._cuts is not None:
            slices.match(self.optimizer.state, self._cuts)
        # Whether some steps are made as long as those of the whole batch would be, which step_all() can't.
        self.of_whole_batch = any(self._is_part(group, p) for group in self.optimizer.param_groups for p in group["params"])
        self._hyperparameters = None
        self._own_names = set()  # names in groups that the optimizer itself writes

    def freeze_hyperparameters(self):
        """Steps from now on use today's hyperparameters."""
        self._hyperparameters = [
            {name: value.clone() if isinstance(value, torch.Tensor) else value
             for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups]

    def changed(self):
        """The name of a hyperparameter that has changed since they were frozen, or None."""
        for then, now in zip(self._hyperparameters or (), self.optimizer.param_groups):
            for name, value in then.items():
                if name not in self._own_names and not bool(now[name] == value):
                    return name
        return None


def _without_hooks(step):
    """`step` without the layer that torch puts around each class's: a profiler's record and hooks, which cost as much as a
    small tensor's update."""
    hooked = torch.optim.Optimizer.profile_hook_step(step).__code__
    return step.__wrapped__ if getattr(step, "__code__", None) is hooked else step


def twin_of(optimizer, kind):
    """A shallow copy of class `kind`, without the patches and hooks of the original."""
    twin = copy.copy(optimizer)
    for name, value in vars(optimizer).items():
        # copy.copy keeps three attributes only; subclasses rely on their own. `step` may be a scheduler's patch,
        # and step hooks run once around the user's step.
        if name != "step" and name not in vars(twin) and not name.endswith("_hooks"):
            setattr(twin, name, value)
    twin.__class__ = kind
    twin._gradweave_twin = True
    return twin


def is_twin(optimizer):
    return hasattr(optimizer, "_gradweave_twin")


def needs_closure(kind):
    """Whether the optimizer evaluates the loss by itself, perhaps many times in a step, as LBFGS does."""
    closure = inspect.signature(kind.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
