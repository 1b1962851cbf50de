"""A link of an accelerator has a group in the processor's memory only where averages are staged, which is probed then."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import jobs
from models import batch

STARTUP_US, US_PER_BYTE = 40.0, 0.02  # on the accelerator


def gloo_threads():
    return sum("gloo" in (task / "comm").read_text() for task in Path(f"/proc/{os.getpid()}/task").iterdir())


def planned(rank, scheme, options):
    """Whether the links' costs are the accelerator's, how many more threads of Gloo there were at the end than before the
    first iteration, and what the checker said."""
    import gradweave
    from accelerator import native
    from gradweave import probe

    probe.JOB_SECONDS = 0.05
    native.carry_by(cost_us=(STARTUP_US, US_PER_BYTE))
    model = jobs.net_on("sim", seed=rank)
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), scheme, options=options,
                                      warm_up=1, profile_iterations=1, report=False, timeout=60)
    begun = gloo_threads()
    for step in range(6):
        x, y = (each.to("sim") for each in batch(rank, step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    link, = model.gradweave.cluster["links"]
    of_device = link["startup_us"] == pytest.approx(STARTUP_US, rel=0.01) and link["us_per_byte"] == pytest.approx(
        US_PER_BYTE, rel=0.01)
    more = gloo_threads() - begun
    gradweave.finish(model)
    model.gradweave.close()
    return of_device, more, native.take_reports()


@pytest.mark.parametrize("scheme, options, staged", [
    ("ddp", {}, False), ("local_sgd", {}, False), ("local_sgd", {"compressor": "int4"}, True),
    ("local_sgd", {"outer_momentum": "0.5"}, True)])
def test_staged_averages_alone_have_a_group_on_the_host_and_its_costs(scheme, options, staged):
    for of_device, more, said in jobs.run(planned, 2, scheme=scheme, options=options):
        assert (of_device, more > 0, said) == (not staged, staged, [])
