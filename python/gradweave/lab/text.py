"""Real text, byte by byte, and a small GPT for it: PyTorch's own sources, which every machine has alike that has the same
release of it."""

import hashlib
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from gradweave.lab import judging
from gradweave.lab.transformer import Block
from gradweave.usage import UsageError

ROOT = Path(torch.__file__).parent
PYTHON = ("nn/**/*.py", "optim/**/*.py", "distributed/**/*.py")
CPP = ("include/c10/**/*.h", "include/torch/csrc/api/**/*.h")
LEAST_BYTES, MOST_BYTES = 100_000, 4_000_000
CONTEXT = 64
BLOCK = 4096  # bytes that go together into the training text or into the held-out text
HELD_OUT = 16  # every so many blocks one


class TextMissing(UsageError):
    """This machine has too little text; the message says which."""


def corpus(patterns=PYTHON):
    """The text as one uint8 tensor: each file once, sorted by pattern and name, the same for the same files.

    Errors: TextMissing below 100 kB.
    """
    seen, parts, size = set(), [], 0
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern), key=lambda each: each.relative_to(ROOT).as_posix()):
            content = path.read_bytes()
            digest = hashlib.sha256(content).digest()
            if content and digest not in seen and size < MOST_BYTES:
                seen.add(digest)
                parts.append(content)
                size += len(content)
    if size < LEAST_BYTES:
        raise TextMissing(f"{' and '.join(f'{ROOT}/{pattern}' for pattern in patterns)} hold {size} bytes of text, and "
                          f"{LEAST_BYTES} are needed; install a torch that has its sources, as PyTorch's own wheels do")
    return torch.frombuffer(bytearray(b"".join(parts)[:MOST_BYTES]), dtype=torch.uint8)


def load(split, patterns=PYTHON):
    """The text of `split`, "train" or "test", as one uint8 tensor: every 16th block of 4096 bytes is held out for "test"."""
    whole = corpus(patterns)
    blocks = torch.arange(len(whole)) // BLOCK
    held_out = blocks % HELD_OUT == HELD_OUT - 1
    return whole[held_out if split == "test" else ~held_out]


def windows(text, starts):
    """(inputs, targets): the 64 bytes from each start, and the 64 from the byte after it, as int64 (n, 64)."""
    places = starts.unsqueeze(1) + torch.arange(CONTEXT + 1)
    chosen = text[places].long()
    return chosen[:, :-1], chosen[:, 1:]


def batches(text, batch_size, rank, world_size, seed):
    """Endless batches of this rank: windows at random places. Global batch i is the same windows for every number of ranks
    whose batches add up to the same size, and depends only on (seed, i)."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + 1)
    while True:
        starts = torch.randint(len(text) - CONTEXT - 1, (batch_size * world_size,), generator=generator)
        yield windows(text, starts[rank * batch_size:(rank + 1) * batch_size])


def loss(logits, targets):
    """Mean cross-entropy of the next byte, in nats. logits: (n, 64, 256)."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def evaluate(model, text, rank=0, world_size=1, most=256, batch_size=32):
    """(share of next bytes that `model` predicts right, in percent; mean loss in nats) over up to `most` windows of `text`,
    as judging.summed(). Collective."""
    count = min(most, (len(text) - 1) // CONTEXT)
    starts = torch.arange(count) * ((len(text) - 1) // count)

    def judge(chosen):
        inputs, targets = windows(text, starts[chosen])
        logits = model(inputs)
        return (logits.argmax(2) == targets).sum(), loss(logits, targets) * targets.numel()

    right, total = judging.summed(model, judge, count, rank, world_size, batch_size)
    return 100 * right / (count * CONTEXT), total / (count * CONTEXT)


class GPT(nn.Module):
    """A decoder over bytes (A. Radford et al., Language Models are Unsupervised Multitask Learners, 2019): input and output
    share their weights."""

    def __init__(self, width=128, depth=4, heads=4):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for block in self.blocks:  # what adds to the residual stream
            for layer in (block.projection, block.narrow):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * depth))
        self.head.weight = self.bytes.weight

    def forward(self, text):
        """Logits (n, 64, 256) of the next byte."""
        x = self.bytes(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.norm(self.blocks(x)))
