"""Ways to shard a model inside an island: tensor parallelism, by hand, HSDP, a stock model; and what copies of one are."""

import pytest
import torch

import ranks
from models import links_cost
from sharded_models import (OPTIONS, STEPS, averaged, make_stack, mesh_of, optimizer_of, shard, shards, train, unlike,
                            wrapped)


def tensor_parallel(rank):
    """{scheme: this rank's shards}, and those of plain tensor parallelism whose gradients are averaged between islands."""
    import gradweave
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    links_cost(halves=True)
    mesh, found = mesh_of(), {}
    island, group = mesh["between"].get_local_rank(), mesh["between"].get_group()
    for scheme in (None, "ddp", "dear", "delayed_averaging"):
        model = make_stack(inner=20)
        for block in model.blocks:
            parallelize_module(block, mesh["inside"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
        if scheme is None:
            train(model, optimizer, island, STEPS, between=averaged(group))
        else:
            model, optimizer = wrapped(model, optimizer, scheme)
            train(model, optimizer, island, STEPS)  # all ranks of an island have one batch
            gradweave.finish(model)
        found[scheme] = shards(model)
    return found


def test_tensor_parallelism_inside():
    results = ranks.run(tensor_parallel, 4)
    for rank, found in enumerate(results):
        assert unlike(found["ddp"], found[None]) == unlike(found["dear"], found[None]) == []
        assert unlike(found["delayed_averaging"], results[(rank + 2) % 4]["delayed_averaging"]) == []


def copied(rank):
    """What differs between an averaged copy of the model and the model after finish(); and what did before."""
    import copy
    import warnings

    import gradweave
    from sharded_models import loss_of
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    links_cost()
    mesh = mesh_of()
    island = mesh["between"].get_local_rank()
    model = make_stack(inner=20)
    for block in model.blocks:
        parallelize_module(block, mesh["inside"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    model, optimizer = wrapped(model, optimizer, "local_sgd", options={"period": 50})
    train(model, optimizer, island, 5)
    plain = copy.deepcopy(model)
    loss_of(plain, island, 5).backward()  # its gradients are not the engine's
    own = shards(plain)
    model.gradweave.average(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradweave.finish(model)  # the copies of all ranks are alike
    return unlike(shards(plain), shards(model)), unlike(own, shards(model))


def test_copies_are_averaged_shard_by_shard():
    for differing, moved in ranks.run(copied, 4):
        assert differing == [] and moved != []


class ByHand(torch.nn.Module):
    """A layer that gathers its weight itself."""

    def __init__(self, rows, columns, mesh):
        super().__init__()
        from torch.distributed.tensor import Shard, distribute_tensor

        self.weight = torch.nn.Parameter(distribute_tensor(torch.randn(rows, columns), mesh, [Shard(0)]))

    def forward(self, x):
        return x @ self.weight.full_tensor().T


def sharded_by_hand(rank):
    """As tensor_parallel(), of shards of several sizes in memory without room for more."""
    import gradweave

    links_cost(halves=True)
    mesh, found = mesh_of(), {}
    island, group = mesh["between"].get_local_rank(), mesh["between"].get_group()
    for scheme in (None, "p3", "dear", "delayed_averaging"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(ByHand(5, 6, mesh["inside"]), torch.nn.Tanh(), ByHand(1, 5, mesh["inside"]))
        optimizer = optimizer_of("sgd", model)
        if scheme is None:
            train(model, optimizer, island, STEPS, between=averaged(group))
        else:
            model, optimizer = wrapped(model, optimizer, scheme, options=OPTIONS.get(scheme))
            train(model, optimizer, island, STEPS)
            gradweave.finish(model)
        found[scheme] = shards(model)
    return found


def test_shards_without_room_are_moved():
    results = ranks.run(sharded_by_hand, 4)
    for rank, found in enumerate(results):
        assert unlike(found["p3"], found[None]) == unlike(found["dear"], found[None]) == []
        assert unlike(found["delayed_averaging"], results[(rank + 2) % 4]["delayed_averaging"]) == []


def hybrid(rank):
    """By scheme, this rank's shards, of HSDP inside."""
    import gradweave
    from torch.distributed.device_mesh import init_device_mesh

    links_cost(halves=True)
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("between", "replicas", "inside"))
    found = {}
    for scheme in ("ddp", "dear", "dreamddp", "delayed_averaging"):
        model = shard(make_stack(), mesh["replicas", "inside"])
        model, optimizer = wrapped(model, optimizer_of("sgd", model), scheme, options=OPTIONS.get(scheme))
        train(model, optimizer, rank, STEPS)
        gradweave.finish(model)
        found[scheme] = shards(model)
        model.gradweave.close()
    model = shard(make_stack(), mesh["replicas", "inside"])
    train(model, optimizer_of("sgd", model), rank, STEPS, between=averaged(mesh["between"].get_group()))
    return found, shards(model)


@pytest.mark.slow
def test_replicas_inside_an_island():
    results = ranks.run(hybrid, 8)
    for rank, (found, plain) in enumerate(results):
        for scheme, own in found.items():
            for other in (rank % 2, rank % 2 + 2, rank % 2 + 4, rank % 2 + 6):  # all that hold this shard
                assert unlike(own, results[other][0][scheme]) == [], (scheme, rank, other)
        assert unlike(found["ddp"], plain) == unlike(found["dear"], plain) == []


def gpt2(rank):
    """A stock model with dropout and tied embeddings: this rank's shards by scheme, and those of plain FSDP2."""
    import gradweave
    from torch.distributed.fsdp import fully_shard
    from transformers import GPT2Config, GPT2LMHeadModel

    links_cost(halves=True)
    mesh, found = mesh_of(), {}
    for scheme in (None, "us_byte", "dear", "delayed_averaging"):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=16, n_embd=24, n_layer=2, n_head=2))
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh["inside"])
        fully_shard(model, mesh=mesh["inside"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if scheme is not None:
            model, optimizer = wrapped(model, optimizer, scheme, options=OPTIONS.get(scheme))
        torch.manual_seed(rank)
        for _ in range(STEPS):
            tokens = torch.randint(97, (2, 16))
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            if scheme is None:
                averaged(mesh["between"].get_group())(model)
            optimizer.step()
        if scheme is not None:
            gradweave.finish(model)
        found[scheme] = shards(model)
    return found


@pytest.mark.slow
def test_a_model_of_transformers():
    pytest.importorskip("transformers")
    results = ranks.run(gpt2, 4)
    for rank, found in enumerate(results):
        assert unlike(found["us_byte"], found[None]) == unlike(found["dear"], found[None]) == []
        assert unlike(found["delayed_averaging"], results[(rank + 2) % 4]["delayed_averaging"]) == []
