"""This process as a rank of a group that torchrun, or a test host, has started."""

import contextlib
import datetime
import json
import os
import shutil
import subprocess
import time

import torch
from torch import distributed

from gradweave.usage import UsageError

TIMEOUT = datetime.timedelta(seconds=60)


class NotLaunched(UsageError):
    """The command needs ranks, and this process is not one or can't reach the others."""


@contextlib.contextmanager
def joined(command):
    """The default process group on Gloo, for the duration of the block. Errors: NotLaunched without torchrun's
    environment, or if the other ranks can't be reached."""
    if "RANK" not in os.environ:
        raise NotLaunched(f"'{command}' runs on every rank: start it with torchrun --nproc-per-node N -m gradweave {command}")
    try:
        distributed.init_process_group("gloo", timeout=TIMEOUT)
    except (ValueError, RuntimeError) as error:
        raise NotLaunched(f"can't join the other ranks: {str(error).splitlines()[0]}; start all of them with torchrun, and "
                          "check MASTER_ADDR and MASTER_PORT") from None
    try:
        yield
    finally:
        distributed.destroy_process_group()
        # A thread of Gloo's lets go of its last work, and of a Python object with it, after the waiter has gone on. If the
        # interpreter ends meanwhile, that aborts the process: leave the thread the interpreter's lock for a moment.
        time.sleep(0.1)


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


def largest(values):
    """The largest of all ranks' numbers at each place of `values`, on all ranks. Collective."""
    if world_size() == 1:
        return values
    box = torch.tensor(values, dtype=torch.float64)
    distributed.all_reduce(box, op=distributed.ReduceOp.MAX)
    return box.tolist()


def interfaces():
    """{interface name: [addresses as text]} of the interfaces that are up, of this network namespace."""
    ip = shutil.which("ip", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    done = subprocess.run([ip, "-j", "addr", "show", "up"], capture_output=True, text=True) if ip else None
    if done is None or done.returncode != 0:
        return {}
    return {entry["ifname"]: [address["local"] for address in entry.get("addr_info", []) if "local" in address]
            for entry in json.loads(done.stdout) if entry}


def reason_against(interface):
    """Why no group can be made on an interface of that name; "" if it is up, or if that can't be told here."""
    up = interfaces()
    return f"'{interface}' is not up here; choose among {', '.join(up)}" if up and interface not in up else ""


def group_on(interface, timeout=TIMEOUT):
    """A Gloo group of all ranks whose traffic uses `interface`. Collective."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    try:
        return distributed.new_group(backend="gloo", timeout=timeout)
    finally:
        if before is None:
            del os.environ["GLOO_SOCKET_IFNAME"]
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = before
