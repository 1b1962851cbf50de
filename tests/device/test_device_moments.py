"""The second moment that ranks measure together: the processor's bits, by a sample that the accelerator copies meanwhile."""

import torch

import jobs
from device_loops import Loop

STEPS = 12  # the first sample counts from the ninth on


class Measured(Loop):
    wrapped = {"moments": "measured"}


def trained(rank, loop, device):
    """(parameters, what the checker said)."""
    import gradweave
    from accelerator import native

    job = loop(rank, device, "delayed_averaging", "adamw")
    job.wrap()
    for step in range(STEPS):
        job.step(step)
    gradweave.finish(job.model)
    found = jobs.values(job.model)
    job.model.gradweave.close()
    return found, native.take_reports()


def on_both(rank):
    """By loop and device."""
    return {(loop.__name__, device): trained(rank, loop, device)
            for loop, device in ((Measured, "cpu"), (Measured, "sim"), (Loop, "cpu"))}


def test_measured_moments_have_the_processors_bits():
    for found in jobs.run(on_both, 2):
        (expected, _), (own, reports), (local, _) = found.values()
        assert reports == []
        assert [name for name, value in own.items() if not torch.equal(value, expected[name])] == []
        assert any(not torch.equal(value, local[name]) for name, value in expected.items())
