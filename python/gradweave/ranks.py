"""This process as a rank of a group that torchrun, or a test host, has started."""

import contextlib
import datetime
import os

import torch
from torch import distributed

TIMEOUT = datetime.timedelta(seconds=60)


class NotLaunched(RuntimeError):
    """The command needs ranks and was started as a single process."""


@contextlib.contextmanager
def joined(command):
    """The default process group on Gloo, for the duration of the block. Errors: NotLaunched without torchrun's
    environment."""
    if "RANK" not in os.environ:
        raise NotLaunched(f"'{command}' runs on every rank: start it with torchrun --nproc-per-node N -m gradweave {command}")
    distributed.init_process_group("gloo", timeout=TIMEOUT)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def joined_if_launched():
    """`joined` under torchrun, else a block in which there is one rank."""
    return joined("") if "RANK" in os.environ else contextlib.nullcontext()


def is_first():
    """Whether this is rank 0, or the only process."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def rank():
    return distributed.get_rank() if distributed.is_initialized() else 0


def world_size():
    return distributed.get_world_size() if distributed.is_initialized() else 1


def agreed(value):
    """Rank 0's `value` (a number) on all ranks. Collective."""
    box = torch.tensor([value], dtype=torch.float64)
    distributed.broadcast(box, 0)
    return box.item()


def group_on(interface):
    """A Gloo group of all ranks whose traffic uses `interface`. Collective."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    try:
        return distributed.new_group(backend="gloo", timeout=TIMEOUT)
    finally:
        if before is None:
            del os.environ["GLOO_SOCKET_IFNAME"]
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = before
