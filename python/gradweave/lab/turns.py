"""Measures several methods of training the same job against each other, interleaved, on the ranks of one process group.

All contestants live in the same processes and take turns in short segments (A B C A B C ...), so that whatever
else the machine does falls on all of them alike. Ratios are taken within a round.
"""

import statistics
import time
from dataclasses import dataclass, field
from typing import Callable, Optional

import torch
from torch import distributed

import gradweave
from gradweave import ranks
from gradweave.lab import emulated_ddp, hosts, training


@dataclass
class Contestant:
    """One method of training. `job.model` may be wrapped; `network` is the bare module, for evaluation.

    `finish` drains what is in flight and makes all ranks equal; `close` ends the contestant's threads (None: nothing
    to do).
    """

    name: str
    job: training.Job
    network: torch.nn.Module
    finish: Optional[Callable] = None
    close: Optional[Callable] = None
    segment_seconds: list = field(default_factory=list)  # per iteration, one entry per round, slowest rank
    lockstep_seconds: list = field(default_factory=list)  # the same, if each iteration waited for its slowest rank
    total_seconds: float = 0.0                           # everything, with the drains
    iterations: int = 0
    turn: Optional[tuple] = None  # (timed, warm-up) iterations of its turns, where not those of all contestants
    sent_bytes: list = field(default_factory=list)  # per iteration, one entry per round: what left this host's interface
    accuracy: Optional[float] = None
    test_loss: Optional[float] = None
    loss: Optional[float] = None


def alone(job):
    """Contestant that computes and never communicates: the bound for all the others."""
    return Contestant("compute alone", job, job.model)


def data_parallel(job, name, emulation=None, **arguments):
    """Contestant that is PyTorch's DistributedDataParallel with these constructor arguments; `emulation` of a
    slow_link.Setting."""
    network = job.model
    job.model = torch.nn.parallel.DistributedDataParallel(network, **arguments)
    close = None
    if emulation:
        hook = emulated_ddp.EmulatedHook(*emulation)
        hook.register(job.model)
        close = hook.close
    return Contestant(name, job, network, close=close)


def planned(job, name, emulation=None, **arguments):
    """Contestant that trains with Gradweave; `emulation` of a slow_link.Setting, `arguments` are gradweave.wrap()'s."""
    network = job.model
    links = [gradweave.EmulatedLink(*emulation)] if emulation else None
    job.model, job.optimizer = gradweave.wrap(network, job.optimizer, links=links, **arguments)
    return Contestant(name, job, network, finish=lambda: gradweave.finish(job.model),
                      close=lambda: job.model.gradweave.close())


def recorded(job, plan, iterations, warm_up, emulation=None):
    """This rank's timeline of `iterations` iterations of the plan, after those that warm up. Collective."""
    contestant = planned(job, "recorded", emulation, plan=plan)
    session = contestant.job.model.gradweave
    training.train(contestant.job, 1)
    session.record_timeline()
    session.install(plan)  # ops are recorded from the beginning of a plan
    training.train(contestant.job, warm_up)
    session.timeline()  # forgets the start
    training.train(contestant.job, iterations)
    timeline = session.timeline()
    contestant.finish()
    contestant.close()
    return timeline


def slowest(seconds):
    """The largest of all ranks' values. Collective."""
    return ranks.largest([seconds])[0]


def run_segment(contestant, iterations, warm_up, on_iteration=None):
    """One turn: `warm_up` iterations that are not timed, `iterations` that are, then the drain."""
    distributed.barrier()
    begin = time.perf_counter()
    training.train(contestant.job, warm_up, on_iteration)
    sent = hosts.sent_bytes()
    durations, loss = training.train(contestant.job, iterations, on_iteration)
    contestant.sent_bytes.append((hosts.sent_bytes() - sent) / iterations)
    if contestant.finish:
        contestant.finish()
    contestant.total_seconds += time.perf_counter() - begin
    contestant.iterations += warm_up + iterations
    *each, together = ranks.largest([*durations, sum(durations)])
    contestant.segment_seconds.append(together / iterations)
    contestant.lockstep_seconds.append(statistics.fmean(each))
    mean = torch.tensor([loss], dtype=torch.float64)
    distributed.all_reduce(mean)
    contestant.loss = mean.item() / distributed.get_world_size()


def run_rounds(contestants, rounds, iterations, warm_up, on_iteration=None):
    """`rounds` rounds of one segment for each contestant, in an order that turns around every round."""
    for number in range(rounds):
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            run_segment(contestant, *(contestant.turn or (iterations, warm_up)), on_iteration)


def iteration_seconds(contestant):
    """Median over the rounds of the seconds per iteration."""
    return statistics.median(contestant.segment_seconds)


def ratio(contestant, reference):
    """(median, smallest, largest) over the rounds of reference time / contestant time: the speed-up."""
    ratios = [b / a for a, b in zip(contestant.segment_seconds, reference.segment_seconds)]
    return statistics.median(ratios), min(ratios), max(ratios)
