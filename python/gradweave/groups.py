"""A job's ranks, and process groups of its own: apart from the user's, whose collectives the loop may issue at any moment."""

import collections
import datetime
import traceback

import torch
from torch import distributed

from gradweave import _native

Gloo = getattr(distributed, "ProcessGroupGloo", None)  # absent where torch was built without it

_jobs = collections.Counter()  # by members, alike on all of them


class JobRanks:
    """The ranks that train one model alike: those of `group`, by default of the default group, or this process alone.
    `rank` and `size` count within them; `name`, once ranks have agreed on it, tells the job from others."""

    def __init__(self, group, timeout_s):
        if group is distributed.GroupMember.NON_GROUP_MEMBER:
            raise ValueError("gradweave.wrap: this rank is not a member of process_group; call it with this rank's own group")
        self.user_group = group or (distributed.group.WORLD if distributed.is_initialized() else None)
        self.timeout = datetime.timedelta(seconds=timeout_s)
        self.members = distributed.get_process_group_ranks(self.user_group) if self.user_group else [0]
        self.size = len(self.members)
        self.rank = distributed.get_group_rank(self.user_group, distributed.get_rank()) if self.user_group else 0
        self.name = None
        self._made, self._registered, self._store = 0, [], None
        if self.size > 1:
            name = "_".join(map(str, self.members))
            _jobs[name] += 1
            store = distributed.distributed_c10d._get_default_store()
            self._store = distributed.PrefixStore(f"gradweave/{name}/{_jobs[name]}", store)
        self.peers = _native.Peers(self._store, self.rank, self.size)

    def control_group(self):
        """For small messages in the processor's memory."""
        return self._gloo()

    def is_gloo(self, device):
        """Whether the job's group communicates tensors on `device` by Gloo, or there is none."""
        return self.user_group is None or _is_gloo(self.user_group._get_backend(device))

    def group_like(self, group, device):
        """A group of the job's ranks that communicates as `group` does with tensors on `device`."""
        backend = group._get_backend(device)
        if _is_gloo(backend):
            return self._gloo(backend.options._devices)
        own = distributed.new_group(self.members, self.timeout, backend.name(), use_local_synchronization=True)
        self._registered.append(own)
        return own

    def group_on(self, interface):
        return self._gloo([Gloo.create_device(interface=interface)])

    def report(self, error):
        """Tell the other ranks that this one ends by `error`."""
        self.peers.report("".join(traceback.format_exception_only(error)).splitlines()[0])

    def close(self):
        self.peers.close()
        for group in self._registered:
            distributed.destroy_process_group(group)
        self._registered, self._store = [], None

    def _gloo(self, devices=None):
        self._made += 1
        store = distributed.PrefixStore(f"group{self._made}", self._store)
        if devices is None:  # GLOO_SOCKET_IFNAME's, else the host name's
            backend = Gloo(store, self.rank, self.size, self.timeout)
        else:
            options = Gloo._Options()
            options._devices, options._timeout = devices, self.timeout
            backend = Gloo(store, self.rank, self.size, options)
        group = distributed.ProcessGroup(store, self.rank, self.size)
        kind = distributed.ProcessGroup.BackendType.GLOO
        group._set_default_backend(kind)
        accelerator = torch.accelerator.current_accelerator()
        for device in {"cpu", accelerator.type if accelerator else "cpu"}:
            group._register_backend(torch.device(device), kind, backend)
        return group


def _is_gloo(backend):
    return Gloo is not None and isinstance(backend, Gloo)
