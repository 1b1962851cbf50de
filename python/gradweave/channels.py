"""The channels that ops are issued on: process groups bound to interfaces, ready groups, emulated links."""

import dataclasses
import math
from dataclasses import dataclass

from torch import distributed

from gradweave import _native, ranks


class EmulatedLink:
    """A link that takes as long as a cost model says: an op of n bytes ends no earlier than startup_us +
    n * us_per_byte after it began, ops one after another, without using the processor meanwhile.

    `group` (default: the default group) really exchanges the data; with a single process there is nothing to exchange
    and only time passes.
    """

    def __init__(self, startup_us: float, us_per_byte: float, group: distributed.ProcessGroup | None = None,
                 name: str | None = None):
        for what, value in (("startup_us", startup_us), ("us_per_byte", us_per_byte)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"EmulatedLink({what}={value}): give a finite number >= 0")
        self.startup_us, self.us_per_byte = float(startup_us), float(us_per_byte)
        self.group, self.name = group, name


@dataclass
class Channel:
    """One link of a job. `source` is the user's group or interface, None for the job's own group; `cost` is (start-up in
    us, us per byte) where it is given rather than measured."""

    name: str
    source: distributed.ProcessGroup | str | None = None
    cost: tuple[float, float] | None = None
    named: bool = True
    group: distributed.ProcessGroup | None = None  # once it is open; None with one process

    control: distributed.ProcessGroup | None = None

    def open(self, job, device, checks):
        """Makes the group that ops are issued on, and, if they are checked, one for checks where that group can't take
        messages in the processor's memory. Collective."""
        if isinstance(self.source, str):
            self.group = job.group_on(self.source)
        elif job.user_group is not None:
            self.group = job.group_like(self.source or job.user_group, device)
        if checks and device.type != "cpu" and self.group is not None:
            self.control = job.control_group()

    def spec(self):
        return _native.LinkSpec(self.name, self.group, self.cost, self.control)

    def __str__(self):
        return f"{self.name} {self.cost}" if self.emulated else self.name

    @property
    def emulated(self):
        return self.cost is not None


def channels_of(links, job):
    """The channels of `wrap(links=...)`: None (the job's group), or a list of interface names, process groups and
    EmulatedLinks. Errors: ValueError for what can't be a link of this job."""
    if links is None:
        if job.user_group is None:
            raise ValueError("gradweave.wrap: there is no process group: call torch.distributed.init_process_group(), "
                             "or pass links=[gradweave.EmulatedLink(...)] to try a schedule in one process")
        return [Channel("default", named=False)]
    if isinstance(links, (str, EmulatedLink)) or not hasattr(links, "__iter__"):
        links = [links]
    links = list(links)
    channels = [_channel_of(number, link, job, alone=len(links) == 1) for number, link in enumerate(links)]
    if not channels:
        raise ValueError("gradweave.wrap: links is empty; name at least one interface or group")
    if len({channel.name for channel in channels}) < len(channels):
        raise ValueError("gradweave.wrap: two links have the same name")
    return channels


def _channel_of(number, link, job, alone):
    if isinstance(link, str):
        if reason := ranks.reason_against(link):
            raise ValueError(f"gradweave.wrap: the interface {reason}")
        return Channel(link, link)
    if isinstance(link, EmulatedLink):
        name = link.name or ("emulated" if alone else f"emulated{number}")
        channel = Channel(name, link.group, (link.startup_us, link.us_per_byte), link.name is not None)
    else:
        channel = Channel(f"group{number}", link, named=False)
    if isinstance(channel.source, distributed.ProcessGroup):
        members = distributed.get_process_group_ranks(channel.source)
        if members != job.members:
            raise ValueError(f"gradweave.wrap: links[{number}] is a group of ranks {members}, and the job's are {job.members}; "
                             "give a group of all ranks that train this model, and say which they are with process_group=")
    elif channel.source is not None or not channel.emulated:
        raise ValueError(f"gradweave.wrap: links[{number}] is {link!r}; give interface names, process groups of which this "
                         "rank is a member, or EmulatedLinks")
    return channel


def renamed(channels, names):
    """The channels under the link names of a plan: by name where they have one of their own, else by place."""
    by_name = {channel.name: channel for channel in channels if channel.named}
    free = [channel for channel in channels if channel.name not in names or not channel.named]
    result = []
    for name in names:
        channel = by_name.get(name) or (free.pop(0) if free else None)
        if channel is None:
            raise ValueError(f"gradweave.wrap: the plan uses link '{name}', and links= has "
                             f"{', '.join(c.name for c in channels)}; give one link for each of the plan's")
        result.append(dataclasses.replace(channel, name=name))
    return result
