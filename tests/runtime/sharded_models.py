"""Jobs of two islands in which a small model's parameters are sharded."""

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 12
OPTIONS = {"delayed_averaging": {"compressor": "int4", "outer_momentum": "0.5"}}


class Block(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stack(nn.Module):
    """With two shards those of the widths 9, 19 and 1 are uneven, and of the last one is empty."""

    def __init__(self, width=9, inner=19, blocks=2):
        super().__init__()
        self.enter = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(blocks))
        self.leave = nn.Linear(width, 1)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def mesh_of(islands=2, inside=2, device="cpu"):
    """Of all ranks, {"between", "inside"}; `device`: the type."""
    return init_device_mesh(device, (islands, inside), mesh_dim_names=("between", "inside"))


def make_stack(seed=0, **sizes):
    torch.manual_seed(seed)
    return Stack(**sizes)


def shard(model, mesh, **options):
    """fully_shard() of the blocks, then of the rest."""
    shard_blocks(model, mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def shard_blocks(model, mesh, **options):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)


def optimizer_of(kind, model):
    return {"sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4),
            "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.003)}[kind](model.parameters())


def batch(rank, step, size=4):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(size, 6, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def loss_of(model, rank, step):
    x, y = (each.to(next(model.parameters()).device) for each in batch(rank, step))
    return nn.functional.mse_loss(model(x).float(), y)


def train(model, optimizer, rank, steps, first=0, between=None):
    """`between`: called with the model between backward and step."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        if between is not None:
            between(model)
        optimizer.step()


def wrapped(model, optimizer, scheme, **given):
    import gradweave

    return gradweave.wrap(model, optimizer, scheme, **{"warm_up": 1, "profile_iterations": 1, "report": False, "timeout": 60,
                                                       "moments": "local"} | given)


def averaged(group):
    """For plain FSDP2: makes gradients of shards their mean over the group."""
    def average(model):
        for parameter in model.parameters():
            if parameter.grad is not None:
                shard = local_of(parameter.grad)
                shard.mul_(1 / group.size())
                distributed.all_reduce(shard, group=group)
    return average


def shards(model):
    """{name: this rank's shard, or the whole of what is whole}."""
    return {name: local_of(p.detach()).clone() for name, p in model.named_parameters()}


def local_of(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def unlike(one, other):
    """Names of what differs."""
    return [name for name, value in one.items() if not torch.equal(value, other[name])]
