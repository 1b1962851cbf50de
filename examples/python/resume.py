"""A job that goes on by itself after a crash, with the same bits as one that never crashed, or with other ranks.

    torchrun --nproc-per-node 2 --max-restarts 3 examples/python/resume.py --scheme deft --folder checkpoints

Every rank writes its own file: parameters differ between ranks under plans that step locally, and what is on its way always
does. A file is written aside and renamed, so that it is whole or not there. After a restart all ranks take the newest
iteration of which there is a file of every rank, and each reads all of them: the job may go on with another number of ranks,
by another --nproc-per-node or because torchrun has lost or found a node (--nnodes 1:4).
"""

import argparse
import os
import re
from pathlib import Path

import torch
from torch import distributed, nn

import gradweave
from gradweave.groups import gathered


def join():
    """This rank and how many there are, in a group of its own for each restart: in torch 2.13 a restarted job has the store of
    the one before, where the addresses of killed ranks are."""
    store, rank, ranks = next(distributed.rendezvous("env://"))
    store = distributed.PrefixStore("restart " + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    return rank, ranks


def batch_of(rank, iteration):
    """Made up, the same again for the same rank and iteration: a loader of real data has to be set to its place too."""
    generator = torch.Generator().manual_seed(1000 * rank + iteration)
    inputs = torch.randn(32, 64, generator=generator)
    return inputs, inputs[:, :10].argmax(1)


def files_of(folder):
    """{(iteration, ranks): {rank: path}}"""
    found: dict[tuple[int, int], dict[int, Path]] = {}
    for path in folder.iterdir():
        if name := re.fullmatch(r"(\d+)\.rank(\d+)of(\d+)\.pt", path.name):
            iteration, rank, ranks = map(int, name.groups())
            found.setdefault((iteration, ranks), {})[rank] = path
    return found


def whole(found):
    """The keys of files_of() of which every rank's file is there."""
    return {key for key, files in found.items() if len(files) == key[1]}


def save(folder, iteration, rank, ranks, state):
    part = folder / f"part.rank{rank}"
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(folder / f"{iteration}.rank{rank}of{ranks}.pt")
    found = files_of(folder)
    for key in [key for key in found if key < max(whole(found), default=(0, 0))]:
        for number, path in found[key].items():
            if number % ranks == rank:
                path.unlink()


def newest(folder, rank, ranks):
    """(iteration, the files of every rank that the job had then) of the newest of which there are all; (0, []) if there is
    none. Newer ones are removed: what goes on from here is another job, whose files don't go with those."""
    found = files_of(folder)
    key = max(set.intersection(*gathered(whole(found))), default=(0, 0))
    for number, path in [each for later in found if later > key for each in found[later].items()]:
        if number % ranks == rank:
            path.unlink(missing_ok=True)
    return key[0], [path for _, path in sorted(found.get(key, {}).items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints are kept")
    parser.add_argument("--scheme", default="auto", help="(default: auto)")
    parser.add_argument("--plan", type=Path, help="a plan file, in place of one that is made of a profile")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="iterations between checkpoints (default: 10)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    rank, ranks = join()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = gradweave.wrap(model, optimizer, given.scheme, plan=given.plan, report=False)
    first, files = newest(given.folder, rank, ranks)
    if first:
        states = [torch.load(file) for file in files]
        own = states[rank % len(states)]
        model.load_state_dict(own["model"])
        optimizer.load_state_dict(own["optimizer"])
        model.gradweave.load_state_dict([state["gradweave"] for state in states])  # after the other two
    print(f"rank {rank} begins at iteration {first}", flush=True)
    for iteration in range(first, given.iterations):
        inputs, targets = batch_of(rank, iteration)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if (iteration + 1) % given.every == 0:
            save(given.folder, iteration + 1, rank, ranks,
                 {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "gradweave": model.gradweave.state_dict()})
    gradweave.finish(model)
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"rank {rank} has trained {given.iterations} iterations, sum of parameters {total!r}", flush=True)
    model.gradweave.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
