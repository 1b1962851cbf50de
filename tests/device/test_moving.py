"""A job goes on elsewhere: saved on the accelerator and loaded on the processor, or the other way round, or by another number
of ranks."""

import functools
import io

import pytest
import torch
from torch import distributed

import jobs
from models import cluster, workload
from test_gains import OUTER, Loop, differing, plan_of

BEFORE, AFTER = 5, 6  # iterations


def through_codec(scheme, codec, **options):
    from gradweave import core

    return core.make_plan(workload(), cluster(distributed.get_world_size(), 0.6), scheme, {"compressor": codec} | options)


# What ranks have on their way or left behind, in the processor's memory and on the device.
GAINS = [functools.partial(plan_of, *case) for case in (
    ("delayed_averaging", "int4", OUTER), ("delayed_averaging", "top_k", None), ("delayed_averaging", None, OUTER),
    ("dreamddp", "int8", OUTER), ("local_sgd", "ef_signsgd", None))]
GRADIENTS = [functools.partial(through_codec, *case) for case in (
    ("deft", "top_k"), ("deft", "int8"), ("ddp", "ef_signsgd"), ("covap", "top_k"), ("dear", "fp16"))]
GRADIENTS += [functools.partial(through_codec, "ddp", "ok_top_k"),
              functools.partial(through_codec, "ddp", "dgc", compressor_momentum=0)]


def saved(rank, device, plans):
    """Checkpoint files after BEFORE iterations, one for each plan."""
    files = []
    for plan in plans:
        loop = Loop(rank, device, plan(), torch.float32)
        loop.train(BEFORE)
        file = io.BytesIO()
        torch.save({"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict(),
                    "gradweave": loop.model.gradweave.state_dict()}, file)
        files.append(file.getvalue())
        loop.model.gradweave.close()
    return files


def loaded(rank, device, plans, files, to):
    """What each job is after AFTER more iterations, and what was reported. `files`: of all ranks; `to`: their map_location."""
    if device == "sim":
        from accelerator import native

        native.take_reports()
    ended = []
    for plan, of_ranks in zip(plans, files, strict=True):
        loop = Loop(rank, device, plan(), torch.float32)
        states = [torch.load(io.BytesIO(file), map_location=to) for file in of_ranks]
        own = states[rank % len(states)]
        loop.model.load_state_dict(own["model"])
        loop.optimizer.load_state_dict(own["optimizer"])
        loop.model.gradweave.load_state_dict([state["gradweave"] for state in states])
        loop.step = BEFORE
        loop.train(AFTER)
        ended.append(loop.finish())
        loop.model.gradweave.close()
    return ended, native.take_reports() if device == "sim" else []


def moved(plans, ranks, path):
    """What rank 0 has in the end. `ranks`: before and after; `path`: devices before and after, and map_location."""
    before, after, to = path
    files = list(zip(*jobs.run(saved, ranks[0], device=before, plans=plans)))
    (ended, reports), *others = jobs.run(loaded, ranks[1], device=after, plans=plans, files=files, to=to)
    assert not reports and not any(other_reports for _, other_reports in others)
    assert not any(differing(*pair) for other, _ in others for pair in zip(ended, other, strict=True))
    return ended


def wrong(plans, ranks, paths):
    """[(path, plan)] whose bits are others than the processor's alone."""
    expected = moved(plans, ranks, ("cpu", "cpu", "cpu"))
    return [(path, plan.args) for path in paths
            for plan, *ended in zip(plans, expected, moved(plans, ranks, path), strict=True) if differing(*ended)]


def test_a_job_goes_on_on_another_device_with_the_same_bits():
    assert not wrong(GAINS + GRADIENTS, (2, 2), [("sim", "cpu", "cpu"), ("cpu", "sim", "cpu"), ("cpu", "sim", "sim")])


@pytest.mark.parametrize("ranks, paths", [
    ((2, 3), [("sim", "sim", "sim")]),
    pytest.param((2, 3), [("sim", "cpu", "cpu"), ("cpu", "sim", "cpu")], marks=pytest.mark.slow),
    pytest.param((3, 2), [("sim", "sim", "sim"), ("sim", "cpu", "cpu"), ("cpu", "sim", "cpu")], marks=pytest.mark.slow)])
def test_averages_on_their_way_are_folded_to_another_number_of_ranks(ranks, paths):
    assert not wrong(GAINS, ranks, paths)
