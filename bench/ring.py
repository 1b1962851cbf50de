"""The time of reduce_scatter and all_gather over that of an all-reduce, on shaped links between hosts on this machine.

A plan that halves its all-reduces should not pay for it. Each cell takes trains of all-reduces, reduce-scatters and
all-gathers in turns; a round's ratio is (reduce-scatter + all-gather) / all-reduce, times being those of the slowest rank.
Results are one JSON file, docs/results/ring.json.

    .venv/bin/python bench/ring.py            # about 10 minutes
    .venv/bin/python bench/ring.py --workers 2 --mbps 400 --kilobytes 3200
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import distributed

from gradweave import _native, ranks
from gradweave.lab import hosts, turns

RESULTS = Path(__file__).parent.parent / "docs/results/ring.json"
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
TRAIN_S = 0.12    # of ops that follow each other
LONGEST_S = 2.5   # an all-reduce that takes longer is left out
TIMEOUT_S = 60


class Link:
    """Runs collectives on the default group, as the engine's transports do."""

    def __init__(self):
        self._number = 0

    def train(self, collective, buffer, count):
        """Milliseconds of each of `count` ops after one another, after a first one, on the slowest rank. Collective."""
        distributed.barrier()
        self._run(collective, buffer)
        begin = time.perf_counter()
        for _ in range(count):
            self._run(collective, buffer)
        return 1e3 * turns.slowest(time.perf_counter() - begin) / count

    def _run(self, collective, buffer):
        _native.run_collective(distributed.group.WORLD, buffer, collective, self._number, TIMEOUT_S)
        self._number += 1


def cell(link, kilobytes, mbps, computing, rounds):
    """One row of the table, or None if it would take too long."""
    expected_s = kilobytes * 8.4e3 * 2 * (ranks.world_size() - 1) / ranks.world_size() / (mbps * 1e6) + 0.002
    if expected_s > LONGEST_S:
        return None
    buffer = torch.zeros(kilobytes * 256)
    count = max(1, min(25, int(TRAIN_S / expected_s)))
    times = {collective: [] for collective in COLLECTIVES}
    busy = _native.Computing() if computing else None
    for number in range(rounds):
        for collective in COLLECTIVES if number % 2 == 0 else COLLECTIVES[::-1]:
            times[collective].append(link.train(collective, buffer, count))
    del busy
    ratios = sorted((half + rest) / whole for whole, half, rest in zip(*times.values()))
    return {"workers": ranks.world_size(), "mbps": mbps, "kilobytes": kilobytes, "computing": computing,
            **{f"{collective}_ms": statistics.median(times[collective]) for collective in COLLECTIVES},
            "ratio": [statistics.median(ratios), ratios[0], ratios[-1]]}


def measure(options):
    """In each rank: the rows of this number of workers. Collective."""
    torch.set_num_threads(1)
    link, rows = Link(), []
    with ranks.joined("ring"):
        for mbps in options.mbps:
            hosts.shape_interface(hosts.interface_of(0), 1e6 * mbps)
            for kilobytes in options.kilobytes:
                for computing in (False, True):
                    row = cell(link, kilobytes, mbps, computing, options.rounds)
                    if row and ranks.is_first():
                        rows.append(row)
                        print(_line(row), file=sys.stderr, flush=True)
    return rows


def _line(row):
    state = "computing" if row["computing"] else "idle"
    return (f"{row['workers']} workers, {row['mbps']:g} Mb/s, {row['kilobytes']} KB, {state}: "
            f"all-reduce {row['all_reduce_ms']:.1f} ms, reduce-scatter {row['reduce_scatter_ms']:.1f}, all-gather "
            f"{row['all_gather_ms']:.1f}: x " "{:.3f} [{:.3f}-{:.3f}]".format(*row["ratio"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 3, 4])
    parser.add_argument("--mbps", type=float, nargs="*", default=[25, 100, 400, 2000])
    parser.add_argument("--kilobytes", type=int, nargs="*", default=[64, 256, 1024, 4096, 16384, 65536])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if "RANK" in os.environ:
        rows = measure(options)
        if ranks.is_first() and os.environ["RANK"] == "0":
            before = json.loads(options.results.read_text()) if options.results.exists() else []
            options.results.write_text(json.dumps(before + rows, indent=1) + "\n")
        return 0
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.unlink(missing_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    for workers in options.workers:
        with hosts.Hosts(workers) as made:
            cpus = [cores[rank % len(cores)] for rank in range(workers)]
            if code := made.run([sys.executable, *sys.argv], {"TORCH_CPP_LOG_LEVEL": "ERROR"}, cpus):
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
