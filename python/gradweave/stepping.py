"""Steps of the user's own optimizer, on all parameters or on some of them."""

import copy
import inspect

import torch
from torch.optim import optimizer as torch_optimizer

from gradweave import moments


class Stepper:
    """Runs an optimizer's own step on subsets of its parameters, bit for bit what a full step does to them.

    For each subset there is a cached twin: a shallow copy with narrowed param_groups and the same state, refreshed
    before each use. `kind` is the optimizer's own class, under the wrapper's; `parameters` are the session's, in its
    order, of which the optimizer has some.
    """

    def __init__(self, optimizer, kind, parameters):
        self.optimizer, self.kind, self.parameters = optimizer, kind, parameters
        self._bare_step = _without_hooks(kind.step)
        self.set_parts_of_batch((), 1)

    @property
    def has_others(self):
        """Whether the optimizer has parameters to step that are not among `parameters`."""
        known = set(map(id, self.parameters))
        return any(p.requires_grad and p.numel() > 0 and id(p) not in known
                   for group in self.optimizer.param_groups for p in group["params"])

    def set_parts_of_batch(self, places, workers):
        """The parameters at `places` are stepped by gradients of one of `workers` parts of a batch."""
        self._parts = {id(self.parameters[place]) for place in places}
        self._workers = workers
        self.forget()

    def _is_part(self, group, parameter):
        return id(parameter) in self._parts and moments.serves(self.kind, group) and not parameter.is_complex()

    @property
    def has_momentum(self):
        """Whether the optimizer averages gradients over iterations, by what its class calls it."""
        return any(group.get("momentum") or "betas" in group or "beta1" in group for group in self.optimizer.param_groups)

    def step_all(self, closure=None):
        return self.kind.step(self.optimizer, closure) if closure else self.kind.step(self.optimizer)

    def step_subset(self, key, members):
        """Step those parameters alone that are this optimizer's among `members()`: places in `parameters`, always the
        same for a `key`."""
        twin, kept = self._twins.get(key) or self._make(key, members())
        if not kept:
            return
        optimizer = self.optimizer
        groups = self._hyperparameters or optimizer.param_groups
        twin.state = optimizer.state
        for group, (source, parameters, of_whole_batch) in zip(twin.param_groups, kept):
            group.update(moments.without_step(groups[source]) if of_whole_batch else groups[source])
            group["params"] = parameters
        for name in ("grad_scale", "found_inf"):  # GradScaler hands them to fused optimizers this way
            if hasattr(optimizer, name):
                setattr(twin, name, getattr(optimizer, name))
            elif hasattr(twin, name):
                delattr(twin, name)
        before = [dict(group) for group in twin.param_groups]
        self._bare_step(twin)
        for source, parameters, of_whole_batch in kept:
            if of_whole_batch:
                moments.step(groups[source], parameters, optimizer.state, self._workers)
        for (source, *_), group, old in zip(kept, twin.param_groups, before):
            # What the optimizer itself writes into a group, a step count for instance, goes back.
            for name, value in group.items():
                if old.get(name) is not value:
                    optimizer.param_groups[source][name] = value
                    self._own_names.add(name)

    def run_pre_hooks(self):
        """The user's hooks around step(), as run_post_hooks(): partial steps have none, so that they run once for each of
        the user's steps."""
        self._run(torch_optimizer._global_optimizer_pre_hooks, getattr(self.optimizer, "_optimizer_step_pre_hooks", {}))

    def run_post_hooks(self):
        self._run(getattr(self.optimizer, "_optimizer_step_post_hooks", {}), torch_optimizer._global_optimizer_post_hooks)

    def _run(self, *tables):
        for hook in [hook for table in tables for hook in table.values()]:
            hook(self.optimizer, (), {})

    def _make(self, key, members):
        wanted = {id(self.parameters[place]) for place in members}
        twin = _twin_of(self.optimizer, self.kind)
        groups, kept = [], []
        for number, group in enumerate(self.optimizer.param_groups):
            for of_whole_batch in (False, True):
                parameters = [p for p in group["params"] if id(p) in wanted and self._is_part(group, p) == of_whole_batch]
                if parameters:
                    groups.append({**group, "params": parameters})
                    kept.append((number, parameters, of_whole_batch))
        twin.param_groups = groups
        self._twins[key] = twin, kept
        return self._twins[key]

    def forget(self):
        """The optimizer's groups or state were replaced, or subsets have new meanings."""
        self._twins = {}
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


def _twin_of(optimizer, kind):
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


def prove_partial_steps(stepper):
    """Whether partial steps equal a full step bit for bit, tried on copies of a few parameters with two steps each.
    Returns None, or why not."""
    optimizer, kind = stepper.optimizer, stepper.kind
    chosen = _samples(optimizer, stepper.parameters)
    if len(chosen) < 2:
        return None
    try:
        full = _trial(optimizer, kind, chosen, split=False)
        parts = _trial(optimizer, kind, chosen, split=True)
    except Exception as error:  # any optimizer of the user's: whatever it raises is the reason
        return f"a partial step of {kind.__name__} failed: {error}"
    for whole, part in zip(full, parts):
        if not torch.equal(whole, part):
            return f"{kind.__name__} couples parameters: a step of some differs from a step of all"
    return None


def _samples(optimizer, parameters):
    known = {id(p) for p in parameters}
    chosen = []
    for group in optimizer.param_groups:
        members = sorted((p for p in group["params"] if id(p) in known), key=lambda p: p.numel())
        chosen += members[:2]
    return chosen[:6]


def _trial(optimizer, kind, chosen, split):
    copies = {id(p): p.detach().clone().requires_grad_() for p in chosen}
    groups = []
    for group in optimizer.param_groups:
        members = [copies[id(p)] for p in group["params"] if id(p) in copies]
        if members:
            groups.append({**group, "params": members})
    trial = _twin_of(optimizer, kind)
    trial.param_groups = copy.deepcopy([{k: v for k, v in g.items() if k != "params"} for g in groups])
    for group, source in zip(trial.param_groups, groups):
        group["params"] = source["params"]
    trial.state = type(optimizer.state)(dict) if hasattr(optimizer.state, "default_factory") else {}
    tensors = list(copies.values())
    stepper = Stepper(trial, kind, tensors)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        for tensor in tensors:
            tensor.grad = torch.rand(tensor.shape, generator=generator).to(tensor)
        if split:
            for place in range(len(tensors)):
                stepper.step_subset(place, lambda: [place])
        else:
            stepper.step_subset("all", lambda: range(len(tensors)))
    return [tensor.detach() for tensor in tensors]
