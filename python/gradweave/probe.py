"""Measures links: the time of each kind of collective for several sizes, and the cost model that follows from them."""

import os
from typing import Sequence

import torch
from torch import distributed

from gradweave import _native, core, ranks

SIZES = _native.PROBE_BYTES
HALVES = ("reduce_scatter", "all_gather")
JOB_SECONDS = 3.0  # for each link of a job


def measure(group: distributed.ProcessGroup | None = None, sizes: Sequence[int] = SIZES, repeats: int = 1000,
            seconds: float = 4.0, device: torch.device = torch.device("cpu"),
            emulation: tuple[float, float] | None = None, collective: str = "all_reduce",
            peers: _native.Peers | None = None) -> list[dict[str, float]]:
    """[{"bytes": n, "us": t}, ...]: the time of a collective on n bytes on `device`, as training has it (src/runtime/probe.h).

    `repeats`: of a size, at most. `emulation`: (start-up in us, us per byte) that an all-reduce takes at least. `peers`: of a
    job, whose verdict ends it, as RuntimeFailure. Collective.
    Takes about `seconds`: large sizes repeat less often, but at least twice, and the largest are left out where one op
    takes longer than its share."""
    found = _native.measure_collective(group or distributed.group.WORLD, device, collective, list(sizes), repeats, seconds,
                                       *(emulation or (0.0, 0.0)), peers)
    return [{"bytes": size, "us": us} for size, us in found]


def probe(interfaces: Sequence[str] = (), seconds: float = 4.0) -> tuple[core.Json, list[str]]:
    """(cluster, lines for people): one link for each interface, or the default group's where none is named.

    Collective.
    """
    chosen = list(interfaces) or [os.environ.get("GLOO_SOCKET_IFNAME") or "default"]
    links, lines = [], []
    for name in chosen:
        link, residual = measure_link(name, ranks.group_on(name) if interfaces else None, seconds=seconds)
        links.append(link)
        us_per_byte = link["us_per_byte"]
        rate = (f"{8 / us_per_byte:.0f} Mb/s of all-reduced data" if us_per_byte > 0 else
                f"its rate is lost in the noise of {seconds:g} s: measure for longer (--seconds)")
        lines.append(f"{name}: start-up {link['startup_us']:.0f} us, {rate}, residual {100 * residual:.1f}%")
    workers = ranks.world_size()
    return cluster_of(links, workers, f"{workers} workers on {', '.join(chosen)}"), lines


def measure_link(name: str, group: distributed.ProcessGroup | None = None, seconds: float = 4.0,
                 **how) -> tuple[core.Json, float]:
    """(link of a cluster file, relative residual of the fit): `name` is the interface that is measured, `how` as in
    measure(). Half of the time is the all-reduce's, the rest that of its halves. Collective."""
    fit = core.fit_link(measure(group, seconds=seconds / 2, **how))
    link = {"name": name, **_line(fit), "concurrency": 1}
    for half in HALVES:
        link[half] = _line(core.fit_link(measure(group, sizes=SIZES[::2], seconds=seconds / 4, collective=half, **how)))
    return link, fit["residual"]


def _line(fit):
    return {"startup_us": fit["startup_us"], "us_per_byte": fit["us_per_byte"]}


def cluster_of(links: list[core.Json], workers: int, description: str) -> core.Json:
    """A cluster file's content from measured links."""
    return {"version": 1, "workers": workers, "workers_per_node": 1, "startup_growth": "linear",
            "description": description, "source": f"measured with torch {torch.__version__}", "links": links}


def of_job(links, control, device, rates):
    """The cluster that the job runs on: what each link costs, measured where it isn't given. Collective."""
    costs = []
    for link in links:
        if link.emulated:
            cost = {"name": link.name, "startup_us": link.model.startup_us, "us_per_byte": link.model.us_per_byte,
                    "concurrency": 1}
        elif control.size == 1:
            cost = {"name": link.name, "startup_us": 1, "us_per_byte": 0, "concurrency": 1}
        else:
            cost, _ = measure_link(link.name, link.group, seconds=JOB_SECONDS, device=device, peers=control.peers)
        costs.append(cost)
    if control.several_groups:
        costs = _slowest(costs, control)
    cluster = cluster_of(costs, control.size, f"{control.size} workers")
    return {**cluster, "compressor_rates": rates} if rates else cluster


def _slowest(costs, control):
    """The links' costs of that group of the job whose link is slowest. Collective."""
    parts = [part for cost in costs for part in (cost, *(cost[half] for half in HALVES if half in cost))]
    keys = ("startup_us", "us_per_byte")
    largest = iter(control.largest([part[key] for part in parts for key in keys], "the comparison of links"))
    for part in parts:
        part.update({key: next(largest) for key in keys})
    return costs


def compressor_rates(scheme, options, workload, workers, device):
    """{compressor: its speed here} of those that a job's plans may use, by a short measurement (src/runtime/rates.h)."""
    found = _native.compressor_rates(scheme, core.texts_of(options), workload, workers, device)
    return {name: {"encode_us_per_byte": encode, "decode_us_per_byte": decode} for name, (encode, decode) in found.items()}
