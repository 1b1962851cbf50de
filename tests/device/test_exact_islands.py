"""Islands that average gradients of a model on the simulated accelerator: the processor's bits, no report, and gradients that
go on their way while the backward is still being launched."""

import os
from pathlib import Path

import pytest
import torch

import jobs
from gradweave.lab.meeting import Meeting
from models import make_optimizer


def trained(rank, device, number, given, steps, small):
    import gradweave
    from accelerator import native
    from gradweave import lockstep

    if small:
        lockstep.BUCKET_BYTES = 1000
    model = jobs.net_on(device, number)
    optimizer = make_optimizer("adamw", model)
    model, optimizer = gradweave.wrap(model, optimizer, **given, island=f"island{number}", between={"average": "gradients"},
                                      report=False)
    islands, early, place = model.gradweave.islands, [], 0
    ended = islands._backward_ended
    islands._backward_ended = lambda: (early.append(islands._supplied if islands._under_way else 0), ended())
    while len(islands.names) < 2:  # alone: of the same batch, however often
        jobs.train(model, optimizer, number, 1, device)
        if number == 1:
            Path(os.environ["JOB_FOLDER"], "begun").touch()
    first = islands.steps
    while islands.steps < first + steps:
        jobs.train(model, optimizer, number, 1, device, first=place)
        place += 1
    gradweave.finish(model)
    found = {"values": jobs.values(model), "reports": native.take_reports() if device == "sim" else [],
             "buckets": len(islands._buckets), "early": max(early)}
    model.gradweave.close()
    return found


@pytest.mark.parametrize("small", [True, False])
def test_gradients_between_islands_are_ordered_and_on_their_way_early(tmp_path, small):
    with Meeting(tmp_path) as meeting:
        arguments = {"given": meeting.given, "steps": 12, "small": small}
        first = jobs.start(trained, 1, device="sim", number=1, **arguments)
        first.wait_for_file("begun")
        second = jobs.start(trained, 1, device="cpu", number=2, **arguments)
        [one], [other] = first.results(), second.results()
    assert not one["reports"]
    floats = [name for name, value in one["values"].items() if value.is_floating_point()]  # each counts its own batches
    assert [name for name in floats if not torch.equal(one["values"][name], other["values"][name])] == []
    if small:
        assert 0 < one["early"] <= one["buckets"] == 3
