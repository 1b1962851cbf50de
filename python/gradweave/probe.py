"""Measures links: the time of each kind of collective for several sizes, and the cost model that follows
(src/runtime/probe.h)."""

import os
from typing import Mapping, Sequence

import torch
from torch import distributed

from gradweave import _native, core, ranks

JOB_SECONDS = 3.0  # for each link of a job


def measure_links(links: Mapping[str, distributed.ProcessGroup], description: str, seconds: float = 4.0,
                  emulation: tuple[float, float] = (0.0, 0.0)) -> tuple[core.Cluster, list[float]]:
    """(cluster of these links, relative residual of each one's fit), measured for so many seconds each, one after another.
    `emulation`: (start-up in us, us per byte) that an all-reduce takes at least. Collective."""
    return _native.measure_links(list(links.items()), ranks.world_size(), description, seconds, *emulation)


def probe(interfaces: Sequence[str] = (), seconds: float = 4.0) -> tuple[core.Cluster, list[str]]:
    """(cluster, lines for people): one link for each interface, or the default group's where none is named.

    Collective.
    """
    chosen = list(interfaces) or [os.environ.get("GLOO_SOCKET_IFNAME") or "default"]
    groups = {name: ranks.group_on(name) if interfaces else distributed.group.WORLD for name in chosen}
    cluster, residuals = measure_links(groups, f"{ranks.world_size()} workers on {', '.join(chosen)}", seconds)
    lines = []
    for link, residual in zip(cluster["links"], residuals):
        us_per_byte = link["us_per_byte"]
        rate = (f"{8 / us_per_byte:.0f} Mb/s of all-reduced data" if us_per_byte > 0 else
                f"rate lost in the noise (give --seconds above {seconds:g})")
        lines.append(f"{link['name']}: start-up {link['startup_us']:.0f} us, {rate}, residual {100 * residual:.1f}%")
    return cluster, lines


def compressor_rates(scheme: str, options: Mapping[str, object], workload: core.Workload, workers: int,
                     device: torch.device) -> dict[str, dict[str, float]]:
    """{compressor: its speed here} of those that a job's plans may use, by a short measurement (src/runtime/rates.h)."""
    found = _native.compressor_rates(scheme, core.texts_of(options), workload, workers, device)
    return {name: {"encode_us_per_byte": encode, "decode_us_per_byte": decode} for name, (encode, decode) in found.items()}
