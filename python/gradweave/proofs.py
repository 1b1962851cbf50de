"""What an optimizer supports, tried on copies of a few of its parameters."""

import collections
import copy
import numbers

import torch

from gradweave import slices
from gradweave.sharding import is_sharded, local_of
from gradweave.stepping import Stepper, twin_of

MOST = 6  # parameters that are tried
# Attributes of optimizers that torch or Gradweave writes.
OTHERS = {"defaults", "state", "param_groups", "step", "grad_scale", "found_inf", "_opt_called", "_step_count",
          "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured", "_need_device_dtype_check_for_fused",
          "_step_supports_amp_scaling", "_gradweave_twin"}


def prove_partial_steps(stepper):
    """Whether partial steps equal a full step bit for bit. Returns None, or why not."""
    chosen = _smallest(stepper, key=lambda p: None, of_each=2)
    if not chosen:
        return None
    name = stepper.kind.__name__
    try:
        full, parts = _tried(stepper, chosen, _step_together), _tried(stepper, chosen, _step_one_by_one)
    except Exception as error:  # any optimizer of the user's: whatever it raises is the reason
        return f"a partial step of {name} failed: {error}"
    if not all(torch.equal(local_of(p), local_of(q)) for p, q in zip(full.parameters, parts.parameters)):
        return (f"{name} couples parameters, or keeps in an attribute what belongs into state[p]: a step of some differs from "
                "a step of all")
    return None


def prove_sharded_steps(stepper):
    """Whether the optimizer steps DTensors, which not all of torch's own do. Collective on an island. Returns None, or why
    not."""
    chosen = [p for p in _smallest(stepper, key=lambda p: (p.ndim, is_sharded(p)), of_each=1) if is_sharded(p)]
    try:
        _tried(stepper, chosen, _step_together)
    except Exception as error:  # as above
        return f"a step of {stepper.kind.__name__} on DTensors failed: {str(error).splitlines()[0]}"
    return None


def prove_slices(stepper):
    """Whether the optimizer works element by element: steps of slices equal a step of all, in parameters and in state, but for
    how fused operations round the last elements of a tensor, and the state of an element begins at zero. Returns None, or why
    not."""
    chosen = [p for p in _smallest(stepper, key=lambda p: p.ndim, of_each=1) if p.numel() > 1]
    name = stepper.kind.__name__
    if any(map(is_sharded, stepper.parameters)):
        return f"{name} steps sharded parameters, each of them whole"

    def fresh(p):
        return p.numel() > 1 and not stepper.optimizer.state.get(p)

    try:
        full, parts = _tried(stepper, chosen, _step_together), _tried(stepper, chosen, _step_slices)
        still = _tried(stepper, list(filter(fresh, _smallest(stepper, key=fresh, of_each=1))), _step_together, zeros=True)
        same = all(_same(p, q) and _same_state(full.optimizer.state[p], dict(parts.optimizer.state[q]))
                   for p, q in zip(full.parameters, parts.parameters))
    except Exception as error:  # as above
        return f"a step of a slice by {name} failed: {error}"
    if not same:
        return f"{name} couples the elements of a parameter: steps of slices differ from a step of all"
    if any(torch.any(value) for p in still.parameters for value in still.optimizer.state[p].values()
           if slices.by_element(value, p)):
        return f"what {name} keeps for each element begins at other values than zero"
    return None


def own_names(optimizer):
    """The names of attributes that its own class writes."""
    return [name for name in vars(optimizer) if name not in OTHERS and not name.endswith("_hooks")]


def _smallest(stepper, key, of_each):
    """The smallest parameters of each group, `of_each` for each value of `key`."""
    known, chosen = {id(p) for p in stepper.parameters}, []
    for group in stepper.optimizer.param_groups:
        kinds = {}
        for p in sorted((p for p in group["params"] if id(p) in known), key=torch.Tensor.numel):
            kinds.setdefault(key(p), []).append(p)
        chosen += [p for members in kinds.values() for p in members[:of_each]]
    return chosen[:MOST]


def _tried(stepper, chosen, step, zeros=False):
    """A stepper of copies of the chosen parameters, after two steps. `zeros`: they and their gradients are zero."""
    optimizer = stepper.optimizer
    copies = {id(p): (torch.zeros_like(p) if zeros else p.detach().clone()).requires_grad_() for p in chosen}
    trial = twin_of(optimizer, stepper.kind)
    trial.param_groups = []
    copied = {id(p): copies.get(id(p), p) for group in optimizer.param_groups for p in group["params"]}
    for name, value in _attributes(trial).items():
        setattr(trial, name, copy.deepcopy(value, copied))
    for group in optimizer.param_groups:
        members = [copies[id(p)] for p in group["params"] if id(p) in copies]
        if members:
            trial.param_groups.append(copy.deepcopy({k: v for k, v in group.items() if k != "params"}) | {"params": members})
    trial.state = type(optimizer.state)(dict) if hasattr(optimizer.state, "default_factory") else {}
    for p in chosen:  # some optimizers make it when they are made
        if state := optimizer.state.get(p):
            trial.state[copies[id(p)]] = {name: copy.deepcopy(value) for name, value in state.items() if name != slices.KEY}
    tried = Stepper(trial, stepper.kind, list(copies.values()))
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        for tensor in tried.parameters:
            values = torch.rand(local_of(tensor).shape, generator=generator)
            tensor.grad = torch.zeros_like(tensor) if zeros else _in_memory_order(tensor, values)
        step(tried)
    return tried


def _attributes(optimizer):
    """Those that are numbers, texts, tensors, or hold nothing else."""
    return {name: vars(optimizer)[name] for name in own_names(optimizer) if _is_plain(vars(optimizer)[name])}


def _is_plain(value):
    if isinstance(value, (dict, list, tuple, set, collections.deque)):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, (numbers.Number, str, torch.Tensor))


def _in_memory_order(like, value):
    made = torch.empty_like(like, requires_grad=False)
    local_of(made).copy_(value)
    return made


def _step_together(stepper):
    stepper.step_subset("all", lambda: range(len(stepper.parameters)))


def _step_one_by_one(stepper):
    for place in range(len(stepper.parameters)):
        stepper.step_subset(place, lambda: [place])
    stepper.forget()  # as a change of plan does: the next step has only what is in state


def _step_slices(stepper):
    places = []
    for place, p in enumerate(stepper.parameters):
        half = (p.numel() + 1) // 2
        # That of one element last: what is kept once must not pass for what is kept for each element.
        places += [(place, begin, end) for begin, end in ((1, half), (half, p.numel()), (0, 1)) if begin < end]
    stepper.step_slices("all", lambda: places)


def _same_state(whole, sliced):
    once = sliced.pop(slices.KEY, {})
    return whole.keys() == sliced.keys() and all(
        _same(whole[name], value) for each in (sliced, *once.values()) for name, value in each.items())


def _same(one, other):
    if not isinstance(one, torch.Tensor) or not one.is_floating_point():
        return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    rounding = 8 * torch.finfo(one.dtype).eps
    return torch.allclose(one, other, rtol=rounding, atol=rounding * one.abs().max().item())
