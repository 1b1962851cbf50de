"""Each transport against the definition of its collective, and which one each backend gets."""

import functools

import pytest
import torch
from torch import distributed

import ranks

SIZES = (1, 2, 5, 4096, 700_001)  # fewer elements than ranks; more than one chunk


def edges(numel, world):
    return [numel * r // world for r in range(world + 1)]


def values(rank, numel, dtype):
    return torch.randn(numel, generator=torch.Generator().manual_seed(1000 * rank + numel)).to(dtype)


def every_collective(rank, transport, dtype, exact=False):
    from gradweave import _native

    group, world, wrong = distributed.group.WORLD, distributed.get_world_size(), []
    for sequence, (numel, collective) in enumerate((n, c) for n in SIZES
                                                   for c in ("all_reduce", "reduce_scatter", "all_gather")):
        if transport in ("ring", "native_halves") and collective == "all_reduce":
            continue
        if transport == "float32_sum" and collective == "all_gather":
            continue
        parts = edges(numel, world)
        mine = slice(parts[rank], parts[rank + 1])
        flat = values(rank, numel, dtype)
        _native.run_collective(group, flat, collective, 4 * sequence, 60, transport)  # an op may take four collectives
        everybodys = [values(r, numel, dtype) for r in range(world)]
        if collective == "all_gather":
            wanted = torch.cat([everybodys[r][parts[r]:parts[r + 1]] for r in range(world)])
            wrong += [] if torch.equal(flat, wanted) else [(collective, numel)]
            continue
        total = sum(each.float() for each in everybodys)
        if exact or transport == "float32_sum":  # rounded once
            equal = torch.equal
            total = total.to(dtype)
        else:  # rounded after each rank, in the transport's order
            equal = functools.partial(torch.allclose, atol=1e-5)
        part = slice(None) if collective == "all_reduce" else mine
        wrong += [] if equal(flat[part], total[part]) else [(collective, numel)]
    return wrong


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("transport", ["ring", "native_halves"])
def test_halves_give_each_rank_its_part(transport, world):
    assert not any(ranks.run(every_collective, world, transport=transport, dtype=torch.float32))


@pytest.mark.parametrize("world, dtype", [(2, torch.bfloat16), (3, torch.bfloat16), (5, torch.float16)])
def test_16_bit_sums_are_rounded_once(world, dtype):
    assert not any(ranks.run(every_collective, world, transport="float32_sum", dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_two_ranks_round_once_in_the_dtype_itself(dtype):
    assert not any(ranks.run(every_collective, 2, transport=None, dtype=dtype, exact=True))


def test_the_best_transport_is_right_for_every_collective():
    assert not any(ranks.run(every_collective, 3, transport=None, dtype=torch.float32))


def test_each_backend_gets_what_it_does_well():
    from gradweave import _native

    # A ring of sends would wait for itself on NCCL; Gloo's reduce-scatter moves a whole all-reduce.
    for collective in ("reduce_scatter", "all_gather"):
        assert _native.transport_for("gloo", collective, torch.float32, 3) == "ring"
        for backend in ("nccl", "a backend that nobody knows"):
            assert _native.transport_for(backend, collective, torch.float32, 3) == "native_halves"
    for backend in ("gloo", "nccl"):
        assert _native.transport_for(backend, "all_reduce", torch.float32, 3) == "all_reduce"
        assert _native.transport_for(backend, "all_reduce", torch.bfloat16, 3) == "float32_sum"
        assert _native.transport_for(backend, "all_reduce", torch.bfloat16, 2) == "all_reduce"  # rounded once as well
        assert _native.transport_for(backend, "reduce_scatter", torch.float16, 3) == "float32_sum"
        assert _native.transport_for(backend, "all_gather", torch.bfloat16, 3) != "float32_sum"
