"""Ranks whose tensors on "sim" communicate as on NCCL, and training there."""

import functools

import torch
from torch import nn

import ranks
from models import batch, make_net

run = functools.partial(ranks.run, environment={"JOB_BACKEND": "cpu:gloo,sim:sim"})
start = functools.partial(ranks.start, environment={"JOB_BACKEND": "cpu:gloo,sim:sim"})


def net_on(device, seed=0):
    model = make_net(seed).to(device)
    model.conv.to(memory_format=torch.channels_last)
    return model


def train(model, optimizer, rank, steps, device, first=0):
    for step in range(first, first + steps):
        x, y = (each.to(device) for each in batch(rank, step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def values(model):
    return {name: value.cpu() for name, value in model.state_dict().items()}


def other_bits(model, expected):
    """The names of what differs from `expected`, another model's values()."""
    return [name for name, value in values(model).items() if not torch.equal(value, expected[name])]
