"""Measures links: the time of each kind of collective for several sizes, and the cost model that follows from them."""

import contextlib
import functools
import itertools
import os
import statistics
import threading
import time
from typing import Sequence

import torch
from torch import distributed

from gradweave import _native, core, ranks

SIZES = tuple(1 << power for power in (13, 16, 18, 19, 20, 21, 22, 23))
TRAINS = 5
HALVES = ("reduce_scatter", "all_gather")
TIMEOUT_S = 60


def measure(group: distributed.ProcessGroup | None = None, sizes: Sequence[int] = SIZES, repeats: int = 100,
            seconds: float = 4.0, device: torch.device = torch.device("cpu"),
            emulation: tuple[float, float] | None = None, collective: str = "all_reduce") -> list[dict[str, float]]:
    """[{"bytes": n, "us": t}, ...]: the time of a collective on n bytes on `device`, as training has it.

    Ops go in trains, since they follow each other in training: an idle token bucket (a shaped interface, a cloud's burst
    credit) lets a first part pass at the speed of the wire, and an idle connection starts slowly. Where training computes
    on the processors, they compute meanwhile: the backend's threads then wait for their turn. A train gives its mean,
    because a short op takes one of several very different times then and a plan has many of them; the median of the
    trains counts, because something else may have run during one. `emulation`: (start-up in us, us per byte) that an op
    takes at least. Collective. Takes about `seconds`: large sizes repeat less often, but at least twice, and the largest are
    left out where one op takes longer than its share.
    """
    group = group or distributed.group.WORLD
    measurements, numbers = [], itertools.count()

    def train(count):
        """Seconds of each of `count` ops that take at least `least` seconds, one after another, after a first one."""
        run = functools.partial(_native.run_collective, group, buffer, collective, timeout_s=TIMEOUT_S)
        run(next(numbers))
        _synchronize(device)
        begin = now = time.perf_counter()
        for _ in range(count):
            run(next(numbers))
            if least:
                time.sleep(max(0.0, now + least - time.perf_counter()))
                now = time.perf_counter()
        _synchronize(device)
        return (time.perf_counter() - begin) / count

    share = seconds / len(sizes)
    with computing() if device.type == "cpu" else contextlib.nullcontext():
        for size in sizes:
            buffer = torch.zeros(max(1, size // 4), dtype=torch.float32, device=device)
            size = buffer.numel() * buffer.element_size()
            least = (emulation[0] + size * emulation[1]) / 1e6 if emulation else 0.0
            if collective in HALVES:
                least /= 2
            once = train(2)  # makes connections and buffers, too
            affordable = torch.tensor([int(share / once)], device=device)
            group.broadcast(affordable, 0).wait()
            total = max(2, min(repeats, affordable.item()))
            trains = min(TRAINS, total // 2)
            times = [train(total // trains) for _ in range(trains)]
            slowest = torch.tensor([statistics.median(times)], device=device)
            group.allreduce(slowest, distributed.ReduceOp.MAX).wait()
            measurements.append({"bytes": size, "us": 1e6 * slowest.item()})
            if affordable.item() == 0 and len(measurements) >= max(3, len(sizes) // 2):
                break  # on a link so slow, larger ones would take minutes
    return measurements


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
