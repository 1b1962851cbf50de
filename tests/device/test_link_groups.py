"""A link of an accelerator has a group in the processor's memory only where averages are staged, which is probed then."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import jobs
from models import batch

CHEAP = 40.0, 0.02  # start-up and time of a byte on the accelerator, us
NEXT_TO_NOTHING = 1.0, 0.0001  # whatever else this machine does, no group on the host costs less
DEAR = 80_000.0, 20.0


def gloo_threads():
    return sum("gloo" in (task / "comm").read_text() for task in Path(f"/proc/{os.getpid()}/task").iterdir())


def planned(rank, scheme, options, cost_us=CHEAP):
    """Whether the plan was made for the accelerator's costs, how many more threads of Gloo there were at the end than before
    the first iteration, what the checker said, and whether the plan's averages are compressed."""
    import gradweave
    from accelerator import native

    native.carry_by(cost_us=cost_us)
    model = jobs.net_on("sim", seed=rank)
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), scheme, options=options,
                                      warm_up=1, profile_iterations=1, report=False, timeout=60)
    begun = gloo_threads()
    for step in range(20):  # `auto` looks at gradients in the first twelve
        x, y = (each.to("sim") for each in batch(rank, step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    link, = model.gradweave.cluster["links"]
    of_device = (link["startup_us"], link["us_per_byte"]) == pytest.approx(cost_us, rel=0.01)
    compressed = any(op.get("payload") == "parameter" and "compression" in op
                     for each in model.gradweave.plan["period"] for op in each["ops"])
    more = gloo_threads() - begun
    gradweave.finish(model)
    model.gradweave.close()
    return of_device, more, native.take_reports(), compressed


@pytest.mark.parametrize("scheme, options, staged", [
    ("ddp", {}, False), ("local_sgd", {}, False), ("local_sgd", {"compressor": "int4"}, True),
    ("local_sgd", {"outer_momentum": "0.5"}, True)])
def test_staged_averages_alone_have_a_group_on_the_host_and_its_costs(scheme, options, staged):
    for of_device, more, said, _ in jobs.run(planned, 2, scheme=scheme, options=options):
        assert (of_device, more > 0, said) == (not staged, staged, [])


@pytest.mark.parametrize("cost_us, staged", [(NEXT_TO_NOTHING, False), (DEAR, True)])
def test_auto_judges_plans_by_the_links_that_they_would_use(cost_us, staged):
    options = {"allow": "exact+local+compressed"}
    for of_device, more, said, compressed in jobs.run(planned, 2, scheme="auto", options=options, cost_us=cost_us):
        assert (compressed, of_device, more > 0, said) == (staged, not staged, True, [])
