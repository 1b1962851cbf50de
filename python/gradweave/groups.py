"""A job's ranks, and process groups of its own: apart from the user's, whose collectives the loop may issue at any moment."""

import collections
import datetime
import os
import time
import traceback

from torch import distributed

from gradweave import _native

GROUPS = "making the process groups"

_jobs = collections.Counter()  # by members, alike on all of them


class JobRanks:
    """The ranks that train one model alike: those of `group`, by default of the default group, or this process alone.
    `rank` and `size` count within them; `name`, once ranks have agreed on it, tells the job from others. `peers` are all ranks
    of `plan_group`, which have one plan; by default this job's own."""

    def __init__(self, group, timeout_s, plan_group=None):
        if group is distributed.GroupMember.NON_GROUP_MEMBER:
            raise ValueError("gradweave.wrap: this rank is not a member of process_group; call it with this rank's own group")
        self.user_group = group or (distributed.group.WORLD if distributed.is_initialized() else None)
        self.timeout_s = timeout_s
        self.members = distributed.get_process_group_ranks(self.user_group) if self.user_group else [0]
        self.size = len(self.members)
        self.rank = distributed.get_group_rank(self.user_group, distributed.get_rank()) if self.user_group else 0
        planners = self.members if plan_group is None else distributed.get_process_group_ranks(plan_group)
        if not set(self.members) <= set(planners):
            raise ValueError(f"gradweave.wrap: plan_group has the ranks {planners}, and those that train alike are "
                             f"{self.members}; give a group of all ranks that are to have one plan")
        self.several_groups = len(planners) > self.size
        self._planners = planners.index(distributed.get_rank()) if self.user_group else 0, len(planners)
        self.name = None
        self._made, self._registered = 0, []
        self._prefix, self._store = _own_store(self.members, "")
        self._peers_store = _own_store(planners, "plan_")[1] if self.several_groups else self._store
        self.peers = _native.Peers(self._peers_store, *self._planners, timeout_s)

    @property
    def decides(self):
        """Whether this rank decides on the plan."""
        return self._planners[0] == 0

    def control_group(self):
        """For small messages in the processor's memory."""
        return self._gloo()

    def planning_group(self):
        """The same for all that have one plan; None where they are this job's ranks."""
        if not self.several_groups:
            return None
        return _native.make_gloo_group(self.peers, distributed.PrefixStore("group", self._peers_store), *self._planners,
                                       self.timeout_s)

    def is_gloo(self, device):
        """Whether the job's group communicates tensors on `device` by Gloo, or there is none."""
        return self.user_group is None or _native.is_gloo(self.user_group, device)

    def group_like(self, group, device):
        """A group of the job's ranks that communicates as `group` does with tensors on `device`."""
        if _native.is_gloo(group, device):
            return self._gloo(like=group, device=device)
        return self._registered_group(group._get_backend(device).name())

    def group_on(self, interface):
        return self._gloo(interface=interface)

    def dump_to(self, folder):
        """Leave a file there when training can't go on. Errors: InvalidInput."""
        self.peers.dump_to(os.fspath(folder), distributed.get_rank() if self.user_group else 0)

    def report(self, error):
        """Tell the other ranks that this one ends by `error`."""
        self.peers.report("".join(traceback.format_exception_only(error)).splitlines()[0])

    def close(self):
        self.peers.close()
        for group in self._registered:
            distributed.destroy_process_group(group)
        self._registered, self._store, self._peers_store = [], None, None

    def _gloo(self, **route):
        return _native.make_gloo_group(self.peers, self._store_of_next_group(), self.rank, self.size, self.timeout_s, **route)

    def _store_of_next_group(self):
        self._made += 1
        return distributed.PrefixStore(f"group{self._made}", self._store)

    def _registered_group(self, backend):
        """Of a backend that torch makes. Named by the job, since torch's own names depend on which groups a rank has made, and
        come again after a group is destroyed."""
        self.peers.agree(GROUPS, "", self.timeout_s)
        store, begin = self._store_of_next_group(), time.monotonic()
        try:
            group, _ = distributed.distributed_c10d._new_process_group_helper(
                self.size, self.rank, self.members, distributed.Backend(backend), store,
                group_name=f"{self._prefix}_{self._made}", timeout=datetime.timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            raise _native.RuntimeFailure(self.peers.give_up(GROUPS, time.monotonic() - begin, str(error))) from error
        distributed.distributed_c10d._world.pg_group_ranks[group] = {member: rank for rank, member in enumerate(self.members)}
        self._registered.append(group)
        return group


def _own_store(members, kind):
    """(prefix, store under it) of the ranks `members` and of one job; (prefix, None) for one rank."""
    name = kind + "_".join(map(str, members))
    _jobs[name] += 1
    prefix = f"gradweave_{name}_{_jobs[name]}"
    if len(members) == 1:
        return prefix, None
    return prefix, distributed.PrefixStore(prefix, distributed.distributed_c10d._get_default_store())
