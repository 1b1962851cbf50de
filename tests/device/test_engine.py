"""The engine on the simulated accelerator: every scheme has the processor's bits, and no access that only luck has ordered."""

import pytest
import torch
from torch import distributed, nn

import jobs
from device_loops import STEPS
from models import make_optimizer
from test_virtual_time import times_without

# Beside every scheme alone: what has streams of its own to order. The second tier has all features with all schemes.
SOME = {"resumed": ["deft", "delayed_averaging", "dear"], "replanned top_k": ["ddp", "covap", "asc_wfbp"],
        "resumed top_k": ["deft", "optimal"], "scaled top_k": ["asc_wfbp", "deft"], "two links": ["deft", "us_byte"],
        "clipped": ["dear"], "accumulated": ["covap"], "fp16": ["dear"], "checked": ["p3"],
        "two streams": ["ddp", "deft", "covap"]}


def schemes(*effects):
    from gradweave import core

    return [row["name"] for row in core.schemes() if row["name"] != "auto" and (not effects or row["consistency"] in effects)]


def on_both(rank, cases, optimizer):
    """{(feature, scheme): (by how much each value differs from the processor's, reports), or why it is refused}."""
    import gradweave
    from accelerator import native
    from device_loops import FEATURES, UNLIKE

    found = {}
    native.take_reports()
    for feature, scheme in cases:
        trained = []
        try:
            for device in ("cpu", "sim"):
                trained.append((FEATURES | UNLIKE)[feature](rank, device, scheme, optimizer).run())
        except gradweave.InvalidInput as refusal:
            found[feature, scheme] = device, str(refusal)
            continue
        differences = {name: (value - trained[0][name]).abs().max().item() for name, value in trained[1].items()}
        found[feature, scheme] = differences, native.take_reports()
    return found


def check(results, atol):
    for found in results:
        for case, (outcome, said) in found.items():
            if isinstance(outcome, str):  # refused, there or on both
                assert outcome == "cpu" or "on the CPU" in said or "accelerator" in said, (case, said)
            else:
                assert said == [] and max(outcome.values()) <= atol, (case, outcome, said[:3])


def by_distributed_data_parallel(rank, schemes):
    from device_loops import Loop

    model = jobs.net_on("sim", seed=rank)
    jobs.train(nn.parallel.DistributedDataParallel(model), make_optimizer("sgd", model), rank, STEPS, "sim")
    expected = {name: p.detach().cpu() for name, p in model.named_parameters()}
    trained = {scheme: Loop(rank, "sim", scheme, "sgd").run() for scheme in schemes}
    return [(scheme, name) for scheme, found in trained.items() for name, value in expected.items()
            if not torch.equal(found[name], value)]


def test_every_scheme_has_the_processors_bits_and_is_silent():
    check(jobs.run(on_both, 2, cases=[("plain", scheme) for scheme in schemes()], optimizer="sgd"), atol=0)


def test_exact_schemes_have_the_bits_of_distributed_data_parallel():
    assert jobs.run(by_distributed_data_parallel, 2, schemes=schemes("exact")) == [[], []]


def test_what_has_streams_to_order_is_silent():
    cases = [(feature, scheme) for feature, names in SOME.items() for scheme in names]
    check(jobs.run(on_both, 2, cases=cases, optimizer="adamw"), atol=0)


def test_two_levels_have_the_processors_bits_and_are_silent():
    gradients = schemes("exact", "delayed") + ["covap"]
    check(jobs.run(on_both, 4, cases=[("levels", scheme) for scheme in gradients], optimizer="sgd"), atol=0)


def closed_in_mid_air(rank, options):
    from accelerator import native
    from device_loops import Unfinished

    found = {}
    for scheme in schemes():
        type("Compressed", (Unfinished,), {"options": options})(rank, "sim", scheme, "sgd").run()
        found[scheme] = native.take_reports()
    return found


@pytest.mark.parametrize("options", [{}, {"compressor": "int8"}])
def test_closing_frees_no_memory_of_ops_under_way(options):
    for found in jobs.run(closed_in_mid_air, 2, options=options):
        assert not any(found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_every_feature_with_every_scheme_is_silent(world, optimizer):
    from device_loops import FEATURES

    cases = [(feature, scheme) for feature in FEATURES for scheme in schemes()]
    # With two ranks a sum has one order.
    check(jobs.run(on_both, world, timeout=3000, cases=cases, optimizer=optimizer), atol=0 if world == 2 else 1e-3)


def of_all_ranks(value):
    values = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def left_out(rank, cases):
    """{site of a wait in the engine: whether a rank reports when it is left out}. Once it is reported, that is known."""
    from accelerator import native
    from device_loops import FEATURES, UNLIKE

    found = {}
    for feature, scheme in cases:
        loop = (FEATURES | UNLIKE)[feature]
        native.take_sites()
        loop(rank, "sim", scheme, "sgd").run()
        for site in sorted(set().union(*of_all_ranks(native.take_sites()))):
            if found.get(site):
                continue
            native.take_reports()
            native.take_sites(left_out=site)
            loop(rank, "sim", scheme, "sgd").run()
            native.take_sites()
            found[site] = any(of_all_ranks(native.take_reports()))
    return found


def test_each_wait_that_is_left_out_is_reported():
    # Between them they have all waits; elsewhere another wait covers some of them. Threads launch on the emulated link alone.
    cases = [("emulated whole", "dear"), ("emulated", "asc_wfbp"), ("emulated top_k", "deft"),
             ("emulated scaled top_k", "asc_wfbp"), ("resumed", "deft"), ("resumed top_k", "deft"),
             ("plain", "delayed_averaging"), ("plain", "dreamddp"), ("plain", "us_byte"), ("resumed", "delayed_averaging"),
             ("scaled replanned top_k", "deft"), ("unfinished", "p3"), ("two streams", "ddp")]
    reported, _ = jobs.run(left_out, 2, cases=cases)
    # That an op starts after its release, and no sooner than a delay after that, is a matter of time and of no access.
    late, _ = jobs.run(times_without, 2, schemes=["sequential", "horovod"])
    unseen = [site for site in reported | late if not reported.get(site) and not late.get(site)]
    assert not unseen and len(reported) >= 14 and sum(late.values()) >= 3


def launches(rank, feature, schemes):
    """{scheme: what the rank launched on the accelerator, in order} with one queue for all groups."""
    from accelerator import native
    from device_loops import FEATURES

    native.carry_by(one_queue=True)
    found = {}
    for scheme in schemes:
        native.take_launches()
        FEATURES[feature](rank, "sim", scheme, "sgd").run()
        found[scheme] = native.take_launches()
    return found


@pytest.mark.parametrize("feature", ["buffers", "own", "two links"])
def test_ranks_launch_everything_in_one_order(feature):
    first, second = jobs.run(launches, 2, feature=feature, schemes=schemes())
    assert first == second and all(len(each) > 6 for each in first.values())
