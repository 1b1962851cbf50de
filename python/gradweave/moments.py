"""Adam on a part of the batch: its steps as long as those of the whole batch would be (src/runtime/adam_step.h)."""

import torch

from gradweave import _native
from gradweave.sharding import local_of

CHOICES = ("whole_batch", "local")


def serves(kind, group):
    """Whether a group's steps can be made so: of torch's Adam and AdamW themselves, by the plain second moment, which the
    step reads nowhere but in its own arithmetic."""
    return kind in (torch.optim.Adam, torch.optim.AdamW) and not (
        group["amsgrad"] or group["capturable"] or group["differentiable"])


def without_step(group):
    """The hyperparameters with which the optimizer updates its state and leaves parameters as they are, bit for bit."""
    return {**group, "lr": 0.0}


def step(group, parameters, state, workers):
    """Moves the parameters that the optimizer has just updated the state of, by the hyperparameters of `group`."""
    stepped = [parameter for parameter in parameters if parameter.grad is not None]
    if not stepped:
        return
    states = [state[parameter] for parameter in stepped]
    kept = ([local_of(each[name]) for each in states] for name in ("exp_avg", "exp_avg_sq", "step"))
    _native.step_as_whole_batch(
        list(map(local_of, stepped)), *kept, lr=float(group["lr"]),
        betas=tuple(map(float, group["betas"])), eps=group["eps"], workers=workers,
        decay=group["weight_decay"] if group["decoupled_weight_decay"] else 0.0)
