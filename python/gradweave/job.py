"""What one rank trains, where a command runs its loop."""

from dataclasses import dataclass
from typing import Callable

import torch
from torch import nn


@dataclass
class Job:
    """A model, its optimizer or a list of them, its loss and an endless iterator of (input, target) batches."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer]
    loss: Callable
    batches: object
    before_step: Callable | None = None  # between the backward and the step

    def zero_grad(self):
        for each in self.optimizers():
            each.zero_grad()

    def step(self):
        if self.before_step:
            self.before_step()
        for each in self.optimizers():
            each.step()

    def optimizers(self):
        return self.optimizer if isinstance(self.optimizer, list) else [self.optimizer]


def repeated(batches):
    """The batches of an iterable, again and again; an iterator is used once."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            return
