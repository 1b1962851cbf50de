"""Compiled models on the accelerator: the bits, and the graphs, of the same model compiled on the processor."""

import pytest
import torch
from torch import nn

import jobs
from models import batch, cluster, of_gains, workload
from test_compile import STEPS, Graphs, make_model, make_optimizer
from test_engine import schemes

# One that needs no cut, one that steps in the forward, one in the backward, one whose averages live on the host.
FEW = ["ddp", "dear", "dreamddp", "delayed_averaging int4"]


def trained(rank, device, case):
    """(parameters, number of graphs) of a model that was compiled after wrap()."""
    import gradweave
    from gradweave import core

    scheme, _, codec = case.partition(" ")
    plan = core.make_plan(workload(make_model(0)), cluster(2, 0.6), scheme)
    model, graphs = make_model(rank).to(device), Graphs()
    model, optimizer = gradweave.wrap(model, make_optimizer(model), plan=of_gains(plan, codec, None) if codec else plan,
                                      report=False)
    called = torch.compile(model, backend=graphs)
    for step in range(STEPS):
        x, y = (each.to(device) for each in batch(rank, step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(called(x), y).backward()
        optimizer.step()
    gradweave.finish(model)
    found = jobs.values(model)
    model.gradweave.close()
    return found, graphs.count


def compiled_on_both(rank, cases):
    """{case: (the names of what differs from the processor's, graphs there and here, reports)}."""
    from accelerator import native

    found = {}
    for case in cases:
        (expected, graphs), (values, graphs_here) = (trained(rank, device, case) for device in ("cpu", "sim"))
        differing = [name for name, value in values.items() if not torch.equal(value, expected[name])]
        found[case] = differing, graphs, graphs_here, native.take_reports()
    return found


@pytest.mark.parametrize("cases", [FEW, pytest.param(None, marks=pytest.mark.slow, id="every scheme")])
def test_a_compiled_model_trains_as_on_the_processor(cases):
    for found in jobs.run(compiled_on_both, 2, timeout=400, cases=cases or schemes()):
        for case, (differing, graphs, graphs_here, reports) in found.items():
            assert not differing and not reports and graphs == graphs_here > 0, (case, found[case])
