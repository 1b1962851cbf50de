"""Models sharded by FSDP2 on the simulated accelerator: the processor's bits, in order on the streams of FSDP2."""

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

import jobs
from models import links_cost
from sharded_models import STEPS, averaged, batch, make_stack, optimizer_of, shard, shards, unlike, wrapped

# The simulated device takes no time, so that nothing tells these how often to average.
WITH_PERIOD = {"local_sgd", "partial_sgd", "dreamddp", "delayed_averaging"}


def train(model, optimizer, rank, device, between=None):
    for step in range(STEPS):
        x, y = (each.to(device) for each in batch(rank, step))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        if between:
            between(model)
        optimizer.step()


def by_scheme(rank, schemes):
    """{scheme: (consistency, this rank's shards, what the checker said)}, and what plain FSDP2 gives on the processor."""
    import gradweave
    from accelerator import native
    from gradweave import core

    links_cost(halves=True)
    mesh, found = init_device_mesh("sim", (2, 2), mesh_dim_names=("between", "inside")), {}
    for row in core.schemes():
        if schemes and row["name"] not in schemes:
            continue
        model = shard(make_stack(seed=mesh["between"].get_local_rank()).to("sim"), mesh["inside"])
        options = {"period": "2"} if row["name"] in WITH_PERIOD else None
        model, optimizer = wrapped(model, optimizer_of("sgd", model), row["name"], options=options)
        train(model, optimizer, rank, "sim")
        gradweave.finish(model)
        own = {name: shard.cpu() for name, shard in shards(model).items()}
        found[row["name"]] = row["consistency"], own, native.take_reports()
        model.gradweave.close()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "inside"))
    model = shard(make_stack(), mesh["inside"])
    train(model, optimizer_of("sgd", model), rank, "cpu", averaged(mesh["between"].get_group()))
    return found, shards(model)


@pytest.mark.parametrize("schemes", [["ddp", "dear", "delayed_averaging"],
                                     pytest.param(None, marks=pytest.mark.slow, id="every scheme")])
def test_islands_are_equal_and_exact_schemes_have_the_bits_of_fsdp2_on_the_processor(schemes):
    results = jobs.run(by_scheme, 4, schemes=schemes)
    for rank, (found, plain) in enumerate(results):
        assert len(found) == len(schemes or found)
        for scheme, (consistency, own, reports) in found.items():
            assert reports == [], (scheme, reports)
            assert unlike(own, results[(rank + 2) % 4][0][scheme][1]) == [], scheme
            if consistency == "exact":
                assert unlike(own, plain) == [], (scheme, rank)
