"""Fine-tuning by low-rank adapters: a GPT that knows PyTorch's Python learns its C++."""

import functools
import hashlib
import os
import sys
from pathlib import Path

import torch
from torch import nn

from gradweave.lab import text

BASE_ITERATIONS, BASE_BATCH, BASE_LEARNING_RATE = 600, 32, 0.003
RANK, SCALE = 8, 2.0


class Adapted(nn.Module):
    """A frozen linear layer and what is learned beside it, a product of two narrow matrices that is nothing at first (E. J. Hu
    et al., LoRA: Low-Rank Adaptation of Large Language Models, 2022; SCALE is their alpha / r)."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.linear(x) + SCALE * self.up(self.down(x))


def network():
    """The base, frozen, with an adapter at each linear layer of its blocks."""
    model = text.GPT()
    model.load_state_dict(base())
    model.requires_grad_(False)
    for block in model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, Adapted(layer))
    return model


def load(split):
    """The C++ of `split`, as text.load(). Makes the base if need be, so that ranks that start later find it."""
    base()
    return text.load(split, patterns=text.CPP)


@functools.cache
def base():
    """What a GPT has learned of the Python alone: the same for the same text and release of torch. Kept in a file."""
    python = text.load("train")
    made_of = hashlib.sha256(f"{torch.__version__} {BASE_ITERATIONS} ".encode() + bytes(python.tolist())).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradweave"
    path = folder / f"gpt-{made_of[:16]}.pt"
    if not path.exists():
        print(f"training the GPT that is adapted, once, into {path}: a minute or two", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")  # ranks may make it at the same time
        torch.save(_trained(python), unfinished)
        unfinished.replace(path)
    return torch.load(path)


def _trained(data):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = text.GPT()
    optimizer = torch.optim.AdamW(model.parameters())
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, BASE_LEARNING_RATE, total_steps=BASE_ITERATIONS)
    batches = text.batches(data, BASE_BATCH, 0, 1, seed=0)
    for _ in range(BASE_ITERATIONS):
        inputs, targets = next(batches)
        optimizer.zero_grad()
        text.loss(model(inputs), targets).backward()
        optimizer.step()
        rate.step()
    return model.state_dict()
