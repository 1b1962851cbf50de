"""The channels that ops are issued on: process groups bound to interfaces, ready groups, emulated links."""

import datetime
import math
from dataclasses import dataclass
from typing import Any

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
    """One link of a job. `cost` is (start-up in us, us per byte) where it is given rather than measured."""

    name: str
    group: Any  # a ProcessGroup; None with one process
    cost: tuple[float, float] | None = None
    named: bool = True

    def spec(self):
        return _native.LinkSpec(self.name, self.group, self.cost)

    @property
    def emulated(self):
        return self.cost is not None


def open_channels(links, timeout_s):
    """The channels of `wrap(links=...)`: None (the default group), or a list of interface names, process groups and
    EmulatedLinks. Collective where it makes groups."""
    default = distributed.group.WORLD if distributed.is_initialized() else None
    if links is None:
        if default is None:
            raise ValueError("gradweave.wrap: there is no process group: call torch.distributed.init_process_group(), "
                             "or pass links=[gradweave.EmulatedLink(...)] to try a schedule in one process")
        return [Channel("default", _own_group(timeout_s), named=False)]
    if isinstance(links, (str, EmulatedLink)) or not hasattr(links, "__iter__"):
        links = [links]
    channels = []
    for number, link in enumerate(links):
        if isinstance(link, EmulatedLink):
            group = link.group or (_own_group(timeout_s) if default is not None else None)
            name = link.name or ("emulated" if len(links) == 1 else f"emulated{number}")
            channels.append(Channel(name, group, (link.startup_us, link.us_per_byte), named=link.name is not None))
        elif isinstance(link, str):
            if reason := ranks.reason_against(link):
                raise ValueError(f"gradweave.wrap: the interface {reason}")
            channels.append(Channel(link, ranks.group_on(link, datetime.timedelta(seconds=timeout_s))))
        else:
            channels.append(Channel(f"group{number}", link, named=False))
    if not channels:
        raise ValueError("gradweave.wrap: links is empty; name at least one interface or group")
    if len({channel.name for channel in channels}) < len(channels):
        raise ValueError("gradweave.wrap: two links have the same name")
    return channels


def _own_group(timeout_s):
    # Apart from the default group, whose collectives the training loop may issue at any moment.
    return distributed.new_group(backend=distributed.get_backend(), timeout=datetime.timedelta(seconds=timeout_s))


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
        result.append(Channel(name, channel.group, channel.cost))
    return result
