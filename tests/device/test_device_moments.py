"""The second moment that ranks measure together: the processor's bits, by a sample that the accelerator copies meanwhile."""

import torch

import jobs
from device_loops import Loop


class Local(Loop):
    steps = 12  # the first sample counts from the ninth on


class Measured(Local):
    wrapped = {"moments": "measured"}


def on_both(rank):
    """(parameters by loop and device, what the checker said)."""
    from accelerator import native

    found = [loop(rank, device, "delayed_averaging", "adamw").run()
             for loop, device in ((Measured, "cpu"), (Measured, "sim"), (Local, "cpu"))]
    return found, native.take_reports()


def test_measured_moments_have_the_processors_bits():
    for (expected, own, local), reports in jobs.run(on_both, 2):
        assert reports == []
        assert [name for name, value in own.items() if not torch.equal(value, expected[name])] == []
        assert any(not torch.equal(value, local[name]) for name, value in expected.items())
