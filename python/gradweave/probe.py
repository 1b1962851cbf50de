"""Measures links: the time of all-reduces of several sizes, and the cost model that follows from them."""

import os
import statistics
import time
from typing import Sequence

import torch
from torch import distributed

from gradweave import core, ranks

SIZES = tuple(1 << power for power in (13, 16, 18, 19, 20, 21, 22, 23))
# Goes before each op that is timed. An idle token bucket (a shaped interface, a cloud's burst credit) lets a first part
# pass at the speed of the wire, and an idle connection starts slowly: in training, ops follow each other.
DRAIN_BYTES = 512 * 1024


def measure(group: distributed.ProcessGroup | None = None, sizes: Sequence[int] = SIZES, repeats: int = 25,
            seconds: float = 4.0) -> list[dict[str, float]]:
    """[{"bytes": n, "us": t}, ...]: the median time of an all-reduce of n bytes, of the slowest rank.

    Collective. Takes about `seconds`: large sizes repeat less often, but at least twice.
    """
    measurements = []
    share = seconds / len(sizes)
    drain = torch.zeros(DRAIN_BYTES // 4, dtype=torch.float32)
    for size in sizes:
        buffer = torch.zeros(max(1, size // 4), dtype=torch.float32)
        # These also make connections and buffers, and choose the repeats.
        begin = time.perf_counter()
        _timed(buffer, drain, group, 2)
        once = (time.perf_counter() - begin) / 2
        count = torch.tensor([max(2, min(repeats, int(share / once)))])
        distributed.broadcast(count, distributed.get_global_rank(group, 0) if group else 0, group=group)
        times = torch.tensor(_timed(buffer, drain, group, int(count)), dtype=torch.float64)
        distributed.all_reduce(times, op=distributed.ReduceOp.MAX, group=group)
        measurements.append({"bytes": buffer.numel() * 4, "us": 1e6 * statistics.median(times.tolist())})
    return measurements


def probe(interfaces: Sequence[str] = (), seconds: float = 4.0) -> tuple[core.Json, list[str]]:
    """(cluster, lines for people): one link for each interface, or the default group's where none is named.

    Collective.
    """
    chosen = list(interfaces) or [os.environ.get("GLOO_SOCKET_IFNAME") or "default"]
    links, lines = [], []
    for name in chosen:
        link, residual = describe_link(name, measure(ranks.group_on(name) if interfaces else None, seconds=seconds))
        links.append(link)
        lines.append(f"{name}: start-up {link['startup_us']:.0f} us, {8 / link['us_per_byte']:.0f} Mb/s of all-reduced "
                     f"data, residual {100 * residual:.1f}%")
    workers = ranks.world_size()
    return cluster_of(links, workers, f"{workers} workers on {', '.join(chosen)}"), lines


def describe_link(name: str, measurements: list[dict[str, float]]) -> tuple[core.Json, float]:
    """(link of a cluster file, relative residual of the fit): `name` is the interface that was measured."""
    fit = core.fit_link(measurements)
    link = {"name": name, "startup_us": fit["startup_us"], "us_per_byte": fit["us_per_byte"], "concurrency": 1}
    return link, fit["residual"]


def cluster_of(links: list[core.Json], workers: int, description: str) -> core.Json:
    """A cluster file's content from measured links."""
    return {"version": 1, "workers": workers, "workers_per_node": 1, "startup_growth": "linear",
            "description": description, "source": f"measured with torch {torch.__version__}", "links": links}


def _timed(buffer, drain, group, count):
    times = []
    for _ in range(count):
        distributed.all_reduce(drain, group=group)
        begin = time.perf_counter()
        distributed.all_reduce(buffer, group=group)
        times.append(time.perf_counter() - begin)
    return times
