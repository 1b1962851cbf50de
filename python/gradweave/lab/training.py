"""The training loop of the example jobs: the same lines whether the model is wrapped by nothing, by
DistributedDataParallel or by Gradweave."""

import itertools
import time
from dataclasses import dataclass
from typing import Callable

import torch
from torch import distributed, nn

from gradweave.lab import fashion_mnist


@dataclass
class Job:
    """What one rank trains: a model, its optimizer, its loss and an endless iterator of (input, target) batches."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable
    batches: object


@dataclass(frozen=True)
class Recipe:
    """How to make the same job again, for each contestant of a comparison and on each rank."""

    network: Callable = fashion_mnist.wide_network
    optimizer: str = "sgd"
    learning_rate: float = 0.05
    momentum: float = 0.9
    batch_size: int = 64
    seed: int = 0

    def make(self, images, labels, rank=0, world_size=1):
        """A job from the beginning: equal parameters on all ranks, this rank's share of the images."""
        torch.manual_seed(self.seed)
        model = self.network()
        if self.optimizer == "sgd":
            optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=self.momentum)
        elif self.optimizer == "adamw":
            optimizer = torch.optim.AdamW(model.parameters(), lr=self.learning_rate)
        else:
            raise ValueError(f"optimizer '{self.optimizer}': choose sgd or adamw")
        shards = fashion_mnist.Shards(images, labels, self.batch_size, rank, world_size, self.seed)
        return Job(model, optimizer, nn.functional.cross_entropy, shards.forever())


def repeated(batches):
    """The batches of an iterable, again and again; an iterator is used once."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            return


def train(job, iterations, on_iteration=None):
    """Train for `iterations` iterations; returns (seconds of each iteration, mean loss of this rank)."""
    job.model.train()
    durations, losses = [], []
    begin = time.perf_counter()
    for inputs, targets in itertools.islice(job.batches, iterations):
        job.optimizer.zero_grad()
        loss = job.loss(job.model(inputs), targets)
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
        end = time.perf_counter()
        durations.append(end - begin)
        begin = end
        if on_iteration:
            on_iteration()
    return durations, float(torch.stack(losses).mean()) if losses else float("nan")


@torch.no_grad()
def accuracy(model, images, labels, rank=0, world_size=1, batch_size=250):
    """The share of `images` that `model` classifies right, in percent; the work is divided among the ranks.

    Buffers (running statistics) are those of rank 0, as in DistributedDataParallel. All ranks must call it, and
    parameters must be equal on all of them.
    """
    if world_size > 1:
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)
    model.eval()
    right = torch.zeros(1, dtype=torch.int64)
    for first in range(rank * batch_size, len(images), world_size * batch_size):
        chosen = slice(first, first + batch_size)
        predicted = model(fashion_mnist.normalised(images[chosen])).argmax(1)
        right += (predicted == labels[chosen]).sum()
    model.train()
    if world_size > 1:
        distributed.all_reduce(right)
    return 100.0 * right.item() / len(images)
