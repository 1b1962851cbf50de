"""The training loop of the example jobs: the same lines whether the model is wrapped by nothing, by
DistributedDataParallel or by Gradweave."""

import itertools
import time
from dataclasses import dataclass

import torch

from gradweave.job import Job
from gradweave.lab import jobs
from gradweave.usage import UsageError


@dataclass(frozen=True)
class Recipe:
    """How to make the same job again, for each contestant of a comparison and on each rank."""

    kind: jobs.Kind = jobs.KINDS["wide"]
    optimizer: str = "sgd"
    learning_rate: float = 0.05
    momentum: float = 0.9
    batch_size: int = 64
    seed: int = 0

    def make(self, data, rank=0, world_size=1):
        """A job from the beginning: equal parameters on all ranks, this rank's share of the training data."""
        torch.manual_seed(self.seed)
        model = self.kind.network()
        if self.optimizer == "sgd":
            optimizer = torch.optim.SGD(trained(model), lr=self.learning_rate, momentum=self.momentum)
        elif self.optimizer == "adamw":
            optimizer = torch.optim.AdamW(trained(model), lr=self.learning_rate)
        elif self.optimizer == "muon":
            optimizer = self._muon(model)
        else:
            raise ValueError(f"optimizer '{self.optimizer}': choose sgd, adamw or muon")
        batches = self.kind.batches(data, self.batch_size, rank, world_size, self.seed)
        return Job(model, optimizer, self.kind.loss, batches)

    def _muon(self, model):
        """Muon for the matrices of all linear layers but the last, which gives the result, and AdamW for the rest, as its
        author recommends. Errors: UsageError if there are no such matrices."""
        matrices = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)][:-1]
        matrices = [matrix for matrix in matrices if matrix.requires_grad]
        if not matrices:
            raise UsageError(f"--optimizer muon: network '{self.kind.name}' has one linear layer at most, and Muon steps "
                             "those before the last; choose sgd or adamw")
        rest = [parameter for parameter in trained(model) if not any(parameter is matrix for matrix in matrices)]
        optimizers = [torch.optim.Muon(matrices, lr=self.learning_rate)]
        if rest:
            optimizers.append(torch.optim.AdamW(rest, lr=self.kind.learning_rate("adamw")))
        return optimizers


def trained(model):
    """The parameters that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def trained_bytes(model):
    """The size of trained() of the model, in bytes."""
    return sum(parameter.nbytes for parameter in trained(model))


def recipe_of(kind, optimizer="sgd", learning_rate=None, batch_size=None, seed=0):
    """The recipe of the job `kind`, a jobs.Kind or the name of one, with its own learning rate and batch size unless others
    are given."""
    kind = jobs.KINDS[kind] if isinstance(kind, str) else kind
    return Recipe(kind, optimizer, learning_rate or kind.learning_rate(optimizer), 0.9, batch_size or kind.batch_size, seed)


def train(job, iterations, on_iteration=None):
    """Train for `iterations` iterations; returns (seconds of each iteration, mean loss of this rank).

    On an accelerator, which works behind its host, only the whole is timed, and each iteration gets its share of it.
    """
    begin = first = time.perf_counter()  # now, since to read a parameter may be to wait for its update
    device = next(job.model.parameters()).device.type
    job.model.train()
    durations, losses = [], []
    if device != "cpu":
        torch.accelerator.synchronize()
        begin = first = time.perf_counter()
    for inputs, targets in itertools.islice(job.batches, iterations):
        job.zero_grad()
        loss = job.loss(job.model(inputs), targets)
        loss.backward()
        job.step()
        losses.append(loss.detach())
        end = time.perf_counter()
        durations.append(end - begin)
        begin = end
        if on_iteration:
            on_iteration()
    if device != "cpu":
        torch.accelerator.synchronize()
        durations = len(durations) * [(time.perf_counter() - first) / max(1, len(durations))]
    return durations, float(torch.stack(losses).mean()) if losses else float("nan")
