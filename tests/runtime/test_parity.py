"""Exact schemes give bit for bit what DistributedDataParallel gives."""

import pytest
import torch
from torch import distributed

import ranks
from models import cluster, make_net, make_optimizer, parameters, train, workload

STEPS = 30


def both_ways(rank, schemes, optimizer):
    """{scheme: parameters} after training, DistributedDataParallel's under None."""
    import gradweave
    from gradweave import core

    result = {}
    model = make_net(seed=rank)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    train(parallel, make_optimizer(optimizer, model), rank, STEPS)
    result[None] = parameters(model)
    for scheme in schemes:
        model = make_net(seed=rank)
        plan = core.make_plan(workload(), cluster(distributed.get_world_size()), scheme)
        with gradweave.wrap(model, make_optimizer(optimizer, model), plan=plan) as (model, stepper):
            train(model, stepper, rank, STEPS)
        result[scheme] = parameters(model)
    return result


def exact_schemes():
    from gradweave import core

    return [row["name"] for row in core.schemes() if row["consistency"] == "exact"]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_two_workers_give_the_same_bits(optimizer):
    schemes = exact_schemes()
    assert {"sequential", "wfbp", "ddp"} <= set(schemes)
    results = ranks.run(both_ways, 2, schemes=schemes, optimizer=optimizer)
    for name, expected in results[0][None].items():
        for rank in range(2):
            for scheme in schemes:
                assert torch.equal(results[rank][scheme][name], expected), (scheme, rank, name)
