"""How well a model does on held-out data, the work divided among the ranks."""

import torch
from torch import distributed


@torch.no_grad()
def summed(model, judge, count, rank, world_size, batch_size):
    """The sums over examples 0 .. count - 1 of both numbers that judge(slice of them) gives: how many the model gets right,
    and their losses.

    Buffers (running statistics) are those of rank 0, as in DistributedDataParallel; parameters must be equal on all ranks.
    Collective.
    """
    if world_size > 1:
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    for first in range(rank * batch_size, count, world_size * batch_size):
        sums += torch.stack(judge(slice(first, min(first + batch_size, count)))).double()
    model.train()
    if world_size > 1:
        distributed.all_reduce(sums)
    return sums.tolist()
