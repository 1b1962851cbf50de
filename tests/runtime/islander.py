"""What the ranks of an island do in tests."""

import hashlib
import json
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from models import batch, make_net, make_optimizer
from sharded_models import loss_of, make_stack, shard, shard_blocks


SHARDED = ("fsdp2", "blocks", "hsdp", "tp")  # "blocks": fully_shard() of these alone


def made(kind, rank, seed, given):
    """(model, optimizer, loss of a step) of an island whose inside is "plain", "gradweave", "ddp", or one of SHARDED."""
    import gradweave

    if kind in SHARDED:
        ranks = distributed.get_world_size()
        mesh = distributed.init_device_mesh("cpu", (ranks,))
        if kind == "hsdp":
            mesh = distributed.init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards"))
        model = make_stack(seed, inner=20 if kind == "tp" else 19)
        if kind == "tp":
            for block in model.blocks:
                parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        else:
            (shard_blocks if kind == "blocks" else shard)(model, mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, foreach=False)
    else:
        model = make_net(seed)
        optimizer = make_optimizer("adamw", model)
        if kind == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
    model, optimizer = gradweave.wrap(model, optimizer, **given, timeout=30.0, report=False)

    def loss(step):
        if kind in SHARDED:
            return loss_of(model, 0 if kind == "tp" else rank, step)
        x, y = batch(rank, step)
        return nn.functional.cross_entropy(model(x), y)

    return model, optimizer, loss


def values_of(model):
    return [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]


def agreed(what):
    """Rank 0's answer."""
    held = [what]
    distributed.broadcast_object_list(held)
    return held[0]


def islander(rank, number, kind, given, between, folder, pace_s):
    """Trains until the file `end` is there, and tells what happens to it. Returns a hash of what it ends with,
    and the islands that have to end so."""
    import gradweave

    model, optimizer, loss = made(kind, rank, number, given | {"island": f"island{number}", "between": between})
    islands, told, step, finished = model.gradweave.islands, None, 0, Path(folder) / "end"
    while not agreed(finished.exists()):
        optimizer.zero_grad()
        loss(100 * number + step).backward()
        optimizer.step()
        step += 1
        now = [islands.averages, islands.names]
        if rank == 0 and now != told:
            with open(Path(folder) / f"island{number}.jsonl", "a") as file:
                file.write(json.dumps({"time": time.time(), "averages": now[0], "names": now[1], "steps": islands.steps,
                                       "landed": told is not None and now[0] > told[0]}) + "\n")
            told = now
        time.sleep(pace_s)
    gradweave.finish(model)
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in values_of(model))).hexdigest()
    with_ = islands.finished_with
    model.gradweave.close()
    return digest, with_
