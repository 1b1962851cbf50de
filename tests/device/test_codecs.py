"""Gradients through codecs on the accelerator: the values that the processor's codecs give."""

import pytest

import jobs
from device_loops import Loop

# By how much parameters may differ after training. PowerSGD's bases are of another algorithm there.
DIFFERENCE = {"int8": 0, "int4": 0, "int2": 0, "dgc": 0, "power_sgd": 5e-3}
MORE = {"dgc": {"compressor_momentum": 0, "compressor_density": 0.1}}


def differences(rank):
    """{(codec, scheme): (by how much values differ from those of the processor, reports)}"""
    from accelerator import native

    found = {}
    for codec in DIFFERENCE:
        compressed = type("Compressed", (Loop,), {"options": {"compressor": codec} | MORE.get(codec, {})})
        for scheme in ("ddp", "deft") + (("dear",) if codec.startswith("int") else ()):
            trained = [compressed(rank, device, scheme, "sgd").run() for device in ("cpu", "sim")]
            found[codec, scheme] = (max((trained[1][name] - value).abs().max().item() for name, value in trained[0].items()),
                                    native.take_reports())
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_through_codecs_are_those_of_the_processor(ranks):
    for found in jobs.run(differences, ranks):
        for (codec, scheme), (difference, reports) in found.items():
            assert difference <= DIFFERENCE[codec] and not reports, (codec, scheme, difference, reports[:2])
