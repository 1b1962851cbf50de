"""Adam on a part of the batch: its steps as long as those of the whole batch would be."""

import math

import torch

from gradweave.sharding import local_of

CHOICES = ("measured", "local")


def serves(kind, group):
    """Whether a group's steps can be made so: of torch's Adam and AdamW themselves, by the plain second moment, which the
    step reads nowhere but in its own arithmetic."""
    return kind in (torch.optim.Adam, torch.optim.AdamW) and not (
        group["amsgrad"] or group["capturable"] or group["differentiable"])


class Measured:
    """What the ranks measure together, `share` (src/runtime/moment_share.h): dividing by the root of share times the second
    moment is a step with other hyperparameters."""

    def __init__(self, share):
        self._share = share

    def before_step(self, group, pieces):
        """The hyperparameters of the optimizer's own step. `pieces`: [(place, begin, tensor)] that it steps: of the parameter
        at that place the elements from `begin` on."""
        if self._share.samples:
            for place, begin, tensor in pieces:
                if tensor.grad is not None:
                    self._share.take(place, begin, local_of(tensor.grad))
        root = math.sqrt(self._share.share)
        decay = group["weight_decay"] * (root if group["decoupled_weight_decay"] else 1.0)
        return {**group, "lr": group["lr"] / root, "eps": group["eps"] / root, "weight_decay": decay}
