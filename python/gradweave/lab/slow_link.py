"""The slow link of the examples: a shaped interface between test hosts, or an emulated one, at a chosen coverage rate."""

import functools
import os
import statistics
from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import distributed

from gradweave import core, probe, ranks
from gradweave.groups import gathered
from gradweave.lab import emulated_ddp, hosts, training, turns

KIND = "GRADWEAVE_LINKS"  # environment variable: "shaped" or "emulated", set by the command that starts the ranks
HEADER_SHARE = 1.046      # bytes on an Ethernet of 1500 bytes per byte of TCP payload: 1514 / 1448
EMULATED_STARTUP_US = 200.0
IDLE_US = 50.0  # between two ops of a link that has nothing to do
LARGE, SMALL = 1 << 20, 1 << 10  # bytes: mostly transfer, mostly start-up
LEAST_S = 1e-4    # of a message between two processes, where a link's fit has found that it starts at once
SHORT_S = 1e-3    # of sending an op whose time tells of start-up; that of longer ones tells of the link's rate


@dataclass
class Setting:
    """What a comparison runs on. Times of the cluster and of the workload are measured, on every rank the same."""

    coverage_wanted: float
    parameter_bytes: int
    compute_s: float          # one iteration without communication
    bits_per_second: float    # of the interface, both directions
    cluster: dict
    emulation: tuple | None = None  # (start-up in us, us per byte) that ops of an emulated link take at least; None: shaped
    residual: float = 0.0     # of the link's fit
    workload: dict = field(default_factory=dict)
    rest_us: float = 0.0      # of an iteration besides forward and backward
    apply_us: float = 0.0     # of an optimizer step outside of the iteration's end, besides its share
    contention: float = 1.0   # compute time while the link is busy over compute time while it is idle
    skew: float = 1.0         # the slowest rank's compute time while the link is busy over that of all ranks in the mean
    handover_us: float = 0.0  # from when an op is ready until an idle link starts it
    launch_us: float = 0.0    # of compute, which a message takes besides
    burst_us: float = 0.0     # of sending: the size of the link's token bucket

    @property
    def kind(self):
        return "emulated" if self.emulation else "shaped"

    @property
    def costs(self):
        """What was measured in the job, by name."""
        return {name: getattr(self, name)
                for name in ("contention", "skew", "apply_us", "handover_us", "launch_us", "burst_us")}

    def coverage(self):
        """Measured communication time of all parameters in one message over compute time."""
        return self.message_s(self.parameter_bytes) / self.compute_s

    def simulate(self, plan, cluster=None, speed=1.0, lockstep=1.0):
        """The simulator's answer where processors take `speed` times as long as when the layers were measured, and `lockstep`
        times as long as that where each iteration waits for its slowest rank. `cluster`: the setting's, with more."""
        demands = core.demands_of(plan)
        waits = not (demands["delays_gradients"] or demands["local_steps"])
        speed, contention = (speed * lockstep, self.contention * self.skew) if waits else (speed, self.contention)
        layers = [{**layer, "forward_us": speed * layer["forward_us"], "backward_us": speed * layer["backward_us"]}
                  for layer in self.workload["layers"]]
        return core.simulate(plan, {**self.workload, "layers": layers}, cluster or self.cluster,
                             optimizer_us=speed * self.rest_us, apply_us=speed * self.apply_us,
                             contention=contention, handover_us=self.handover_us, launch_us=self.launch_us,
                             burst_us=self.burst_us)

    def measure_in(self, job, reference):
        """Measure what ops take beside the job's own computation, and of it, on each rank; and what steps of parts of the
        model take. Collective."""
        self.contention, self.launch_us = taken_of_compute(self, reference)
        whole, in_parts = (self._recorded(job, scheme, iterations) for scheme, iterations in (("wfbp", 16), ("dear", 8)))
        startup_us, self.handover_us = delays(whole, self)
        self.skew = skew(whole)
        self.apply_us = of_a_part(whole, in_parts)
        link = self.cluster["links"][0]
        for cost in (link, link.get("reduce_scatter"), link.get("all_gather")):
            if cost:
                cost["startup_us"] = max(0.0, cost["startup_us"] + startup_us)

    def _recorded(self, job, scheme, iterations):
        plan = core.make_plan(self.workload, self.cluster, scheme)
        return turns.recorded(job(), plan, iterations, 4, self.emulation)["spans"]

    def message_s(self, size):
        """Measured seconds of a message of `size` bytes."""
        link = self.cluster["links"][0]
        return (link["startup_us"] + size * link["us_per_byte"]) / 1e6


def emulated(parameter_bytes, compute_s, coverage, workers):
    """The setting of `workers` workers on an emulated link, there or not, with that coverage rate."""
    us_per_byte = (1e6 * coverage * compute_s - EMULATED_STARTUP_US) / parameter_bytes
    link = {"name": "emulated", "startup_us": EMULATED_STARTUP_US, "us_per_byte": us_per_byte, "concurrency": 1}
    return Setting(coverage, parameter_bytes, compute_s,
                   bits_per_second_at(coverage, parameter_bytes, compute_s, workers),
                   {"version": 1, "workers": workers, "startup_growth": "linear", "links": [link],
                    "description": f"{workers} workers on an emulated link"},
                   (EMULATED_STARTUP_US, us_per_byte))


def bits_per_second_at(coverage, parameter_bytes, compute_s, workers):
    """The rate of the interface at which communicating all parameters takes `coverage` times `compute_s`."""
    payload_bytes = parameter_bytes * 2 * (workers - 1) / workers  # what each rank sends in a ring all-reduce
    return 8 * payload_bytes * HEADER_SHARE / (coverage * compute_s)


def set_up(parameter_bytes, compute_s, coverage):
    """Give the link the rate at which communicating all parameters takes `coverage` times `compute_s`, and measure
    it. Collective; `compute_s` must be the same on all ranks."""
    workers = ranks.world_size()
    if os.environ[KIND] == "emulated":
        setting = emulated(parameter_bytes, compute_s, coverage, workers)
        name, description = "emulated", setting.cluster["description"]
    else:
        name, bits_per_second = hosts.interface_of(0), bits_per_second_at(coverage, parameter_bytes, compute_s, workers)
        hosts.shape_interface(name, bits_per_second)
        description = f"{workers} workers on {name}, shaped to {bits_per_second / 1e6:.0f} Mb/s"
        setting = Setting(coverage, parameter_bytes, compute_s, bits_per_second, {},
                          burst_us=8e6 * hosts.burst_bytes(bits_per_second) / bits_per_second)
    # An emulated op takes longer than its model where passing its bytes between the processes does.
    measured, (setting.residual,) = probe.measure_links({name: distributed.group.WORLD}, description, seconds=8.0,
                                                        emulation=setting.emulation or (0.0, 0.0))
    setting.cluster = measured.to_dict()
    return setting


def cluster_for(setting, method):
    """The setting's cluster with the speed here of the compressors that `method` may use. Collective."""
    measured = probe.compressor_rates(method.scheme, method.plan_options, setting.workload, ranks.world_size(),
                                      torch.device("cpu"))
    rates = {name: {key: ranks.agreed(value) for key, value in rate.items()} for name, rate in measured.items()}
    return {**setting.cluster, "compressor_rates": rates} if rates else setting.cluster


def skew(spans):
    """How many times longer than the mean of all ranks the slowest one computes in a backward beside messages: what these take
    of a processor differs from iteration to iteration. From the spans of a plan that sends in the backward. Collective."""
    own = {}
    for span in spans:
        if span["kind"] == "backward":
            own[span["iteration"]] = own.get(span["iteration"], 0.0) + span["end_us"] - span["begin_us"]
    of_ranks = gathered(own)
    times = [[rank[iteration] for rank in of_ranks] for iteration in own if all(iteration in rank for rank in of_ranks)]
    return ranks.agreed(sum(map(max, times)) / sum(map(statistics.fmean, times)))


def of_a_part(whole, in_parts):
    """The microseconds by which an optimizer's step of a part of the model takes longer than its share of the whole step,
    from the spans of a plan that steps at each iteration's end and of one that steps in the forward. Collective."""
    def steps(spans):
        """[microseconds of each step], the number of iterations"""
        own = [span for span in spans if span["kind"] == "optimizer"]
        return [span["end_us"] - span["begin_us"] for span in own], len({span["iteration"] for span in own})

    (at_end, iterations), (parts, times) = steps(whole), steps(in_parts)
    more = sum(parts) / times - sum(at_end) / iterations  # in an iteration
    return max(0.0, statistics.fmean(gathered(more * times / len(parts))))


def delays(spans, setting):
    """(the microseconds by which an op's start-up in a job is longer than the probe measured, those which an op besides
    waits for an idle link to start it): threads have to wake beside the job's computation. From the spans of a plan with short
    messages. Collective."""
    spans = sorted((span for span in spans if span["track"] == 1), key=lambda span: span["begin_us"])
    link = setting.cluster["links"][0]
    more = {}  # {op: (by how much its start-up is longer than the link's, whether the link was idle before)}
    for before, op in zip(spans, spans[1:]):
        sending_us = op["bytes"] * link["us_per_byte"]
        if sending_us < 1e6 * SHORT_S:
            startup_us = op["end_us"] - op["begin_us"] - max(0.0, sending_us - setting.burst_us)  # in which the bucket fills
            more[op["iteration"], op["label"]] = (startup_us - link["startup_us"],
                                                  op["begin_us"] - before["end_us"] > IDLE_US)
    of_ranks = gathered(more)
    busy, idle = defaultdict(list), defaultdict(list)  # by iteration
    for op in (op for op in more if all(op in found for found in of_ranks)):
        times = [found[op][0] for found in of_ranks]
        if any(found[op][1] for found in of_ranks):
            idle[op[0]].append(min(times))  # the rank that comes last waits for nobody
        else:
            busy[op[0]].append(statistics.fmean(times))  # each rank waits for the others' threads
    # Half of the iterations may have been disturbed.
    startup_us, of_idle_us = (statistics.median(map(statistics.fmean, found.values())) if found else 0.0
                              for found in (busy, idle))
    return ranks.agreed(startup_us), ranks.agreed(max(0.0, of_idle_us - startup_us) if idle else 0.0)


def taken_of_compute(setting, reference, rounds=9, iterations=4):
    """(how many times longer compute takes while the link is busy, at least 1; the microseconds of compute that a message
    takes besides, however small). Collective.

    `reference` is the contestant that computes alone. Ops are queued ahead so that the link never idles. An emulated
    link moves the bytes through the loopback interface, which takes processor time too.
    """
    hook = emulated_ddp.EmulatedHook(*setting.emulation) if setting.emulation else None
    all_reduce = hook.average if hook else functools.partial(distributed.all_reduce, async_op=True)

    def beside(size, longer):
        """(seconds of an iteration, messages that have ended in it) beside messages of so many bytes; they last if compute
        takes up to `longer` times as long."""
        buffer = torch.zeros(size // 4)
        message_s = max(setting.message_s(size), LEAST_S)
        count = int(longer * iterations * reference.segment_seconds[-1] / message_s) + 1
        works = [all_reduce(buffer) for _ in range(int(ranks.agreed(count)))]
        busy, _ = training.train(reference.job, iterations)
        ended = sum(work.done() if hook else work.is_completed() for work in works)
        for work in works:
            work.wait()
        return turns.slowest(sum(busy)) / iterations, ranks.agreed(ended) / iterations

    slower, more = [], []
    for _ in range(rounds):
        turns.run_segment(reference, iterations, 0)
        alone = reference.segment_seconds[-1]
        slower.append(beside(LARGE, 1.3)[0] / alone)
        seconds, messages = beside(SMALL, 3.0)
        more.append((seconds / alone, messages / alone))
    if hook:
        hook.close()
    contention = max(1.0, statistics.median(slower))
    of_messages = statistics.median((ratio - contention) / max(rate, 1.0) for ratio, rate in more)
    return contention, max(0.0, 1e6 * of_messages)
