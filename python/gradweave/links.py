"""The links that ops are issued on: process groups bound to interfaces, ready groups, emulated links."""

import dataclasses
import functools
import math
import os
from dataclasses import dataclass
from typing import Callable

from torch import distributed

from gradweave import _native, ranks
from gradweave._native import InvalidInput


class EmulatedLink:
    """A link that takes as long as a cost model says: an op of n bytes ends no earlier than startup_us +
    n * us_per_byte after it began, ops one after another, without using the processor meanwhile.

    `group` (default: the default group) really exchanges the data; with a single process there is nothing to exchange
    and only time passes.
    """

    def __init__(self, startup_us: float, us_per_byte: float, group: distributed.ProcessGroup | None = None,
                 name: str | None = None) -> None:
        self.group, self.name = group, name
        self.emulation = _native.Emulation()
        self.set(startup_us, us_per_byte)

    def set(self, startup_us: float, us_per_byte: float) -> None:
        """Change the costs, for ops that begin from now on. So you can try how training follows a link that changes."""
        for what, value in (("startup_us", startup_us), ("us_per_byte", us_per_byte)):
            if not (math.isfinite(value) and value >= 0):
                raise InvalidInput(f"EmulatedLink({what}={value}): give a finite number >= 0")
        self.startup_us, self.us_per_byte = float(startup_us), float(us_per_byte)
        self.emulation.set(self.startup_us, self.us_per_byte)


@dataclass
class Link:
    """One link of a job. `source` is the user's group or interface, None for the job's own group; `model` is what
    makes it slower, if anything does. `level`: as in plans; then `among` are this rank's partners of the job, itself included,
    and between nodes it carries shard number `shard` of `shards` of each message."""

    name: str
    source: distributed.ProcessGroup | str | None = None
    model: EmulatedLink | None = None
    named: bool = True
    group: distributed.ProcessGroup | None = None  # once it is open; None with one rank
    # Makes one for messages in the processor's memory, where the group can't take them.
    make_control: Callable[[], distributed.ProcessGroup] | None = None
    level: str = "all"
    among: range | None = None
    shard: int = 0
    shards: int = 1

    def open(self, job, device):
        """Makes the group that ops are issued on. One rank alone needs none. Collective."""
        if job.size == 1:
            return
        if isinstance(self.source, str):
            self.group = job.group_on(self.source, self.among)
        else:
            self.group = job.group_like(self.source or job.user_group, device, self.among)
        if device.type != "cpu" and not _native.is_gloo(self.group, device):
            self.make_control = functools.partial(job.control_group, self.among)

    def spec(self):
        return _native.LinkSpec(self.name, self.group, self.model and self.model.emulation, self.make_control, self.level,
                                self.shard, self.shards)

    def __str__(self):
        return f"{self.name} {(self.model.startup_us, self.model.us_per_byte)}" if self.emulated else self.name

    @property
    def emulated(self):
        return self.model is not None


def links_of(given, job, device):
    """The links of `wrap(links=...)` for parameters on `device`: None (the job's group), or a list of interface names, process
    groups and EmulatedLinks. Errors: InvalidInput for what can't be a link of this job."""
    started = os.environ.get("WORLD_SIZE", "1")
    if job.user_group is None and started != "1":
        raise InvalidInput(f"gradweave.wrap: there is no process group, and WORLD_SIZE={started} processes were started: call "
                           "torch.distributed.init_process_group() before")
    if given is None:
        return [Link("default", named=False)]
    given = [given] if isinstance(given, (str, EmulatedLink)) or not hasattr(given, "__iter__") else list(given)
    links = [_link_of(number, one, job, device, alone=len(given) == 1) for number, one in enumerate(given)]
    if not links:
        raise InvalidInput("gradweave.wrap: links is empty; name at least one interface or group")
    names = [link.name for link in links]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"gradweave.wrap: links= has two links called '{name}': give each its own name")
    return links


def _link_of(number, given, job, device, alone):
    if isinstance(given, str):
        if reason := ranks.reason_against(given):
            raise InvalidInput(f"gradweave.wrap: the interface {reason}")
        if device.type != "cpu" and not job.is_gloo(device):
            raise InvalidInput(f"gradweave.wrap: links[{number}] is the interface '{given}', whose group would be Gloo's, and "
                               f"the job's group has another backend for parameters on {device.type}; give a process group "
                               "of that backend, and choose its interfaces in its own way (NCCL_SOCKET_IFNAME for NCCL)")
        return Link(given, given)
    if isinstance(given, EmulatedLink):
        name = given.name or ("emulated" if alone else f"emulated{number}")
        link = Link(name, given.group, given, given.name is not None)
    else:
        link = Link(f"group{number}", given, named=False)
    if isinstance(link.source, distributed.ProcessGroup):
        members = distributed.get_process_group_ranks(link.source)
        if members != job.members:
            raise InvalidInput(f"gradweave.wrap: links[{number}] is a group of ranks {members}, and the job's are "
                               f"{job.members}; give a group of all ranks that train this model, and say which they are "
                               "with process_group=")
    elif link.source is not None or not link.emulated:
        raise InvalidInput(f"gradweave.wrap: links[{number}] is {given!r}; give interface names, process groups of which this "
                           "rank is a member, or EmulatedLinks")
    return link


def over_levels(links, inside, job, workers_per_node):
    """The links of two levels: those called `inside` in each node of so many of the job's ranks, one after another, and
    `links` between the ranks that have the same place in their nodes."""
    node, place = divmod(job.rank, workers_per_node)
    own = range(node * workers_per_node, (node + 1) * workers_per_node)
    same = range(place, job.size, workers_per_node)
    return [*(Link(name, level="inside", among=own) for name in inside),
            *(dataclasses.replace(link, level="between", among=same, shard=place, shards=workers_per_node) for link in links)]


def renamed(links, names):
    """The links under the link names of a plan: by name where they have one of their own, else by place."""
    by_name = {link.name: link for link in links if link.named}
    free = [link for link in links if link.name not in names or not link.named]
    result = []
    for name in names:
        link = by_name.get(name) or (free.pop(0) if free else None)
        if link is None:
            raise InvalidInput(f"gradweave.wrap: the plan uses link '{name}', and links= has "
                               f"{', '.join(link.name for link in links)}; give one link for each of the plan's")
        result.append(dataclasses.replace(link, name=name))
    return result
