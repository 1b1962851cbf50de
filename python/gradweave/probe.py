"""Measures links: the time of all-reduces of several sizes, and the cost model that follows from them."""

import contextlib
import os
import statistics
import threading
import time
from typing import Sequence

import torch
from torch import distributed

from gradweave import core, ranks

SIZES = tuple(1 << power for power in (13, 16, 18, 19, 20, 21, 22, 23))
TRAINS = 5
ENOUGH = 4  # sizes


def measure(group: distributed.ProcessGroup | None = None, sizes: Sequence[int] = SIZES, repeats: int = 100,
            seconds: float = 4.0, device: torch.device = torch.device("cpu"),
            emulation: tuple[float, float] | None = None) -> list[dict[str, float]]:
    """[{"bytes": n, "us": t}, ...]: the time of an all-reduce of n bytes on `device`, as training has it.

    Ops go in trains, since they follow each other in training: an idle token bucket (a shaped interface, a cloud's burst
    credit) lets a first part pass at the speed of the wire, and an idle connection starts slowly. Where training computes
    on the processors, they compute meanwhile: the backend's threads then wait for their turn. A train gives its mean,
    because a short op takes one of several very different times then and a plan has many of them; the median of the
    trains counts, because something else may have run during one. `emulation`: (start-up in us, us per byte) that an op
    takes at least. Collective. Takes about `seconds`: large sizes repeat less often, but at least twice, and the largest are
    left out where one op takes longer than its share.
    """
    group = group or distributed.group.WORLD
    measurements = []
    share = seconds / len(sizes)
    with computing() if device.type == "cpu" else contextlib.nullcontext():
        for size in sizes:
            buffer = torch.zeros(max(1, size // 4), dtype=torch.float32, device=device)
            size = buffer.numel() * buffer.element_size()
            least = (emulation[0] + size * emulation[1]) / 1e6 if emulation else 0.0
            once = _train(buffer, group, 2, least)  # makes connections and buffers, too
            affordable = torch.tensor([int(share / once)], device=device)
            group.broadcast(affordable, 0).wait()
            total = max(2, min(repeats, affordable.item()))
            trains = min(TRAINS, total // 2)
            times = [_train(buffer, group, total // trains, least) for _ in range(trains)]
            slowest = torch.tensor([statistics.median(times)], device=device)
            group.allreduce(slowest, distributed.ReduceOp.MAX).wait()
            measurements.append({"bytes": size, "us": 1e6 * slowest.item()})
            if affordable.item() == 0 and len(measurements) >= ENOUGH:
                break  # on a link so slow, larger ones would take minutes
    return measurements


def _train(buffer, group, count, least):
    """Seconds of each of `count` all-reduces that take at least `least` seconds, one after another, after a first one."""
    group.allreduce(buffer, distributed.ReduceOp.SUM).wait()
    _synchronize(buffer.device)
    begin = now = time.perf_counter()
    for _ in range(count):
        group.allreduce(buffer, distributed.ReduceOp.SUM).wait()
        if least:
            time.sleep(max(0.0, now + least - time.perf_counter()))
            now = time.perf_counter()
    _synchronize(buffer.device)
    return (time.perf_counter() - begin) / count


def _synchronize(device):
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextlib.contextmanager
def computing():
    """Keeps as many processors busy as a training step of this process would."""
    done, threads = threading.Event(), torch.get_num_threads()

    def work():
        torch.set_num_threads(threads)  # OpenMP has a number for each thread
        left, right, product = torch.ones(256, 256), torch.ones(256, 256), torch.empty(256, 256)
        while not done.is_set():
            torch.mm(left, right, out=product)

    worker = threading.Thread(target=work, name="compute", daemon=True)
    worker.start()
    try:
        yield
    finally:
        done.set()
        worker.join()


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
