"""Muon for matrices and AdamW for the rest, on the accelerator: as with DistributedDataParallel, and as on the processor."""

import pytest
import torch
from torch import nn

import jobs
from models import batch


def optimizers_of(model):
    return [torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.01),
            torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=0.01)]


def train(model, optimizers, rank, device):
    from device_loops import STEPS

    for step in range(STEPS):
        x, y = (each.to(device) for each in batch(rank, step))
        for each in optimizers:
            each.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for each in optimizers:
            each.step()


def trained(rank, device, scheme):
    import gradweave
    from device_loops import Loop

    model = jobs.net_on(device, seed=rank)
    model, optimizers = gradweave.wrap(model, optimizers_of(model), plan=Loop(rank, device, scheme, "").plan, moments="local",
                                       timeout=30, report=False)
    train(model, optimizers, rank, device)
    gradweave.finish(model)
    found = jobs.values(model)
    model.gradweave.close()
    return found


def other_bits(rank, schemes):
    """(scheme, tensor) whose bits are not those of DistributedDataParallel, for exact schemes, or else of the processor; and
    what the checker said."""
    from accelerator import native
    from gradweave import core

    model = jobs.net_on("sim", seed=rank)
    train(nn.parallel.DistributedDataParallel(model), optimizers_of(model), rank, "sim")
    plain = {name: p.detach().cpu() for name, p in model.named_parameters()}
    exact = {row["name"] for row in core.schemes() if row["consistency"] == "exact"}
    wrong = []
    for scheme in schemes:
        found = trained(rank, "sim", scheme)
        expected = plain if scheme in exact else trained(rank, "cpu", scheme)
        wrong += [(scheme, name) for name, value in expected.items() if not torch.equal(found[name], value)]
    return wrong, native.take_reports()


def check(schemes):
    assert jobs.run(other_bits, 2, schemes=schemes) == [([], [])] * 2


def test_muon_as_with_distributed_data_parallel_and_on_the_processor():
    check(["ddp", "dear", "deft", "local_sgd", "delayed_averaging"])


@pytest.mark.slow
def test_muon_under_every_scheme():
    from gradweave import core

    check([row["name"] for row in core.schemes() if row["name"] != "auto"])
