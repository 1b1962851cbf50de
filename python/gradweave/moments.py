"""Adam on a part of the batch: its steps as long as those of the whole batch would be."""

import math

import torch

from gradweave import _native
from gradweave.sharding import local_of

CHOICES = ("whole_batch", "measured", "local")


def serves(kind, group):
    """Whether a group's steps can be made so: of torch's Adam and AdamW themselves, by the plain second moment, which the
    step reads nowhere but in its own arithmetic."""
    return kind in (torch.optim.Adam, torch.optim.AdamW) and not (
        group["amsgrad"] or group["capturable"] or group["differentiable"])


def step(group, parameters, state, workers):
    """Moves the parameters that the optimizer has just updated the state of, by the hyperparameters of `group`
    (src/runtime/adam_step.h)."""
    stepped = [parameter for parameter in parameters if parameter.grad is not None]
    if not stepped:
        return
    states = [state[parameter] for parameter in stepped]
    kept = ([local_of(each[name]) for each in states] for name in ("exp_avg", "exp_avg_sq", "step"))
    _native.step_as_whole_batch(
        list(map(local_of, stepped)), *kept, lr=float(group["lr"]),
        betas=tuple(map(float, group["betas"])), eps=group["eps"], workers=workers,
        decay=group["weight_decay"] if group["decoupled_weight_decay"] else 0.0)


class Estimated:
    """What each of `workers` estimates of the whole batch's second moment alone."""

    def __init__(self, workers):
        self._workers = workers

    def before_step(self, group, pieces):
        """The hyperparameters of the optimizer's own step. `pieces`: [(place, begin, tensor)] that it steps: of the parameter
        at that place the elements from `begin` on."""
        return {**group, "lr": 0.0}  # it updates its state, and leaves parameters as they are, bit for bit

    def after_step(self, group, tensors, state):
        step(group, tensors, state, self._workers)


class Measured:
    """What the ranks measure together, `share` (src/runtime/moment_share.h): dividing by the root of share times the second
    moment is a step with other hyperparameters."""

    def __init__(self, share):
        self._share = share

    def before_step(self, group, pieces):
        if self._share.samples:
            for place, begin, tensor in pieces:
                if tensor.grad is not None:
                    self._share.take(place, begin, local_of(tensor.grad))
        root = math.sqrt(self._share.share)
        decay = group["weight_decay"] * (root if group["decoupled_weight_decay"] else 1.0)
        return {**group, "lr": group["lr"] / root, "eps": group["eps"] / root, "weight_decay": decay}

    def after_step(self, group, tensors, state):
        pass
