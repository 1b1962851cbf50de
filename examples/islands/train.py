"""A small transformer on text, sharded by FSDP2 inside an island and averaged between islands.

    gradweave meet --make-key job.key
    gradweave meet --listen 127.0.0.1:29600 --key job.key &
    python examples/islands/sampler.py --listen 127.0.0.1:29601 --file ledger.sqlite &
    torchrun --standalone --nproc-per-node 2 examples/islands/train.py --key job.key --island a
    torchrun --standalone --nproc-per-node 2 examples/islands/train.py --key job.key --island b

The islands are two terminals' here, and may be anywhere, now or later. Kill one, and start it again: the other trains on,
and the newcomer goes on from what that one has. Each piece of the text is trained once in an epoch,
whoever does it (sampler.py).
"""

import argparse
import logging
import time

import torch
from sampler import Samples
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import Dataset

import gradweave


class Characters(nn.Module):
    """Predicts each next byte of a text."""

    def __init__(self, width=64, blocks=2, context=64):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(blocks))
        self.head = nn.Linear(width, 256)

    def forward(self, text):
        hidden = self.embedding(text) + self.places(torch.arange(text.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden.flatten(0, 1))


class Pieces(Dataset):
    """All pieces of this very file, and the bytes that follow theirs."""

    def __init__(self, context=64):
        with open(__file__, "rb") as file:
            self.text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
        self.context = context

    def __len__(self):
        return len(self.text) - self.context

    def __getitem__(self, begin):
        piece = self.text[begin:begin + self.context + 1]
        return piece[:-1], piece[1:]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--meeting", default="127.0.0.1:29600")
    arguments.add_argument("--key", required=True)
    arguments.add_argument("--island", help="its name (default: the machine's)")
    arguments.add_argument("--ledger", help="the default is port 29601 of the meeting point's host")
    arguments.add_argument("--epochs", type=int, default=4)
    arguments.add_argument("--pace", type=float, default=0.0, help="seconds to wait after each step")
    given = arguments.parse_args()

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    distributed.init_process_group("gloo")
    torch.manual_seed(int.from_bytes(open("/dev/urandom", "rb").read(4), "little"))
    model = Characters()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = gradweave.wrap(model, optimizer, islands=given.meeting, key=given.key, island=given.island,
                                      between={"fragments": 1})  # as Samples needs it
    islands = model.gradweave.islands
    ledger = given.ledger or given.meeting.rpartition(":")[0] + ":29601"
    samples = Samples(Pieces(), batch_size=16, chunk=512, islands=islands, ledger=ledger, epochs=given.epochs)
    for pieces, following in samples:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pieces), following.flatten())
        loss.backward()
        optimizer.step()
        time.sleep(given.pace)
        if islands.steps % 20 == 0 and distributed.get_rank() == 0:
            print(f"step {islands.steps}: loss {loss.item():.3f}, {len(islands.names)} islands, {islands.averages} averages",
                  flush=True)
    gradweave.finish(model)
    total = sum(p.full_tensor().double().sum().item() for p in model.parameters())
    if distributed.get_rank() == 0:
        print(f"finished with {', '.join(islands.finished_with)}: the sum of all parameters is {total:.12f}", flush=True)
    model.gradweave.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
