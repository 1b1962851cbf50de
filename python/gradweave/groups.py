"""A job's ranks, and process groups of its own: apart from the user's, whose collectives the loop may issue at any moment."""

import collections
import datetime
import io
import json
import os
import pickle
import time
import traceback

import torch
from torch import distributed

from gradweave import _native
from gradweave._native import InvalidInput

GROUPS = "making the process groups"
ARRIVAL = ": wrap(arrival_timeout=) says how far apart they may start"
# By their names since torch 2.13; 2.11 and 2.12 have the former names alone, of which later releases warn.
all_gather_single = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
reduce_scatter_single = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor

_jobs = collections.Counter()  # by members, alike on all of them


# torch's own collectives of objects need NumPy, which may be missing.

def gathered(value, group=None):
    """[of each rank of `group`: its `value`, of numbers, texts and what holds them], on all of its ranks. Collective."""
    own = _pickled(value, group)
    sizes = [int(size) for size in _all_gathered(torch.tensor([len(own)], device=own.device), group)]
    padded = own.new_zeros(max(sizes))
    padded[:len(own)] = own
    return [_unpickled(held[:size]) for held, size in zip(_all_gathered(padded, group), sizes)]


def from_rank_0(value, group=None):
    """Rank 0's `value`, of numbers, texts and what holds them, on all ranks of `group`. Collective."""
    own = _pickled(value, group)
    size = torch.tensor([len(own)], device=own.device)
    distributed.broadcast(size, group=group, group_src=0)
    held = own if distributed.get_rank(group) == 0 else own.new_empty(int(size))
    distributed.broadcast(held, group=group, group_src=0)
    return _unpickled(held)


def _all_gathered(tensor, group):
    found = [torch.empty_like(tensor) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(found, tensor, group=group)
    return found


def _pickled(value, group):
    device = distributed.distributed_c10d._get_object_coll_device(group)
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)


class _Data(pickle.Unpickler):
    """Reads numbers, texts and what holds them: what another rank has sent can't name code."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} is no data")


def _unpickled(held):
    return _Data(io.BytesIO(bytes(held.tolist()))).load()


class JobRanks:
    """The ranks that train one model alike: those of `group`, by default of the default group, or this process alone.
    `rank` and `size` count within them; `name`, once ranks have agreed on it, tells the job from others. `peers` are all ranks
    of `plan_group`, which have one plan; by default this job's own. `held`: what this rank has of a sharded model, as
    sharding.held_by() tells it; those that hold the same train alike, and by default all ranks have one plan. Collective then:
    ranks may come `arrival_s` after each other."""

    def __init__(self, group, timeout_s, plan_group=None, held=None, arrival_s=None):
        for name, given in (("process_group", group), ("plan_group", plan_group)):
            if given is distributed.GroupMember.NON_GROUP_MEMBER:
                raise InvalidInput(f"gradweave.wrap: this rank is not a member of {name}; call it with this rank's own group")
        world = distributed.group.WORLD if distributed.is_initialized() else None
        self.user_group, self.timeout_s = group or world, timeout_s
        self.members = _ranks_of(self.user_group)
        own = distributed.get_rank() if world else 0
        self._planners = _ranks_of(plan_group or world) if held or plan_group else self.members
        if not held and not set(self.members) <= set(self._planners):
            raise InvalidInput(f"gradweave.wrap: plan_group has the ranks {self._planners}, and those that train alike are "
                               f"{self.members}; give a group of all ranks that are to have one plan")
        self.name = None
        self._made, self._registered = 0, []
        # That of a sharded model has the name of one that is not: if some ranks have such a model, all see it.
        kind = "plan_" if len(self._planners) > len(self.members) and not held else ""
        self._prefix, self._peers_store = _own_store(self._planners, kind)
        self.peers = _native.Peers(self._peers_store, self._planners.index(own), len(self._planners), timeout_s)
        if held:
            self._store = None
            try:
                self.members = self._that_hold_the_same(held, group, arrival_s)
            except BaseException:
                self.close()
                raise
            self.user_group = world
        self.size, self.rank = len(self.members), self.members.index(own)
        self.several_groups = len(self._planners) > self.size
        if self.several_groups:
            self._prefix, self._store = _own_store(self.members, "part_" if held else "")
        else:
            self._store = self._peers_store

    @property
    def decides(self):
        """Whether this rank decides on the plan."""
        return self.peers_rank == 0

    @property
    def peers_rank(self):
        return self._planners.index(self.members[self.rank])

    @property
    def part(self):
        """A number of what the ranks train that train alike, other than that of all others; None where all do."""
        return self._planners.index(self.members[0]) if self.several_groups else None

    def of_members(self, posts):
        """Of what all `peers` have posted, what this job's ranks have."""
        return [posts[self._planners.index(member)] for member in self.members]

    def control_group(self, among=None):
        """For small messages in the processor's memory. `among`: of these ranks of the job; all call it, each for its own."""
        return self._gloo(among)

    def planning_group(self):
        """The same for all that have one plan; None where they are this job's ranks."""
        if not self.several_groups:
            return None
        return _native.make_gloo_group(self.peers, distributed.PrefixStore("group", self._peers_store), self.peers_rank,
                                       len(self._planners), self.timeout_s)

    def is_gloo(self, device):
        """Whether the job's group communicates tensors on `device` by Gloo, or there is none."""
        return self.user_group is None or _native.is_gloo(self.user_group, device)

    def group_like(self, group, device, among=None):
        """A group of the job's ranks that communicates as `group` does with tensors on `device`."""
        if _native.is_gloo(group, device):
            return self._gloo(among, like=group, device=device)
        return self._registered_group(group._get_backend(device).name(), among)

    def group_on(self, interface, among=None):
        return self._gloo(among, interface=interface)

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

    def _that_hold_the_same(self, held, given, arrival_s):
        """The ranks, of which the caller may have given a group. Errors: InvalidInput, alike on all ranks."""
        held = {"with": [self._planners.index(rank) if rank in self._planners else -1 for rank in held["with"]],
                "part": held["part"], "given": given and [self._planners.index(rank) for rank in _ranks_of(given)]}
        # In the form of agreement.agree(), by which ranks with a model that is whole come here.
        posts = self.peers.agree("gradweave.wrap()", json.dumps({
            "refusal": None, "arguments": {"parameters": "sharded"}, "name": "", "held": held}), arrival_s, ARRIVAL)
        everybodys = [json.loads(post).get("held") for post in posts]
        if None in everybodys:
            whole = [rank for rank, each in enumerate(everybodys) if each is None]
            raise InvalidInput(f"gradweave.wrap: the model is whole on ranks {' '.join(map(str, whole))} and sharded "
                               "on the others; shard it alike in every island")
        groups = _native.link_groups([(each["with"], each["part"]) for each in everybodys])
        for rank, each in enumerate(everybodys):
            if each["given"] not in (None, groups[rank]):
                raise InvalidInput(f"gradweave.wrap: process_group of rank {rank} has the ranks {each['given']}, and "
                                   f"the same part of the model is held by {groups[rank]}; leave process_group out")
        return [self._planners[rank] for rank in groups[self._planners.index(distributed.get_rank())]]

    def _gloo(self, among, **route):
        among = among or range(self.size)
        return _native.make_gloo_group(self.peers, self._store_of_next_group(among), among.index(self.rank), len(among),
                                       self.timeout_s, **route)

    def _store_of_next_group(self, among):
        self._made += 1
        return distributed.PrefixStore(f"group{self._made}_{among[0]}", self._store)

    def _registered_group(self, backend, among):
        """Of a backend that torch makes. Named by the job, since torch's own names depend on which groups a rank has made, and
        come again after a group is destroyed."""
        self.peers.agree(GROUPS, "", self.timeout_s)
        among = among or range(self.size)
        store, begin, members = self._store_of_next_group(among), time.monotonic(), [self.members[rank] for rank in among]
        try:
            group, _ = distributed.distributed_c10d._new_process_group_helper(
                len(among), among.index(self.rank), members, distributed.Backend(backend), store,
                group_name=f"{self._prefix}_{self._made}_{among[0]}", timeout=datetime.timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            raise _native.RuntimeFailure(self.peers.give_up(GROUPS, time.monotonic() - begin, str(error))) from error
        distributed.distributed_c10d._world.pg_group_ranks[group] = {member: rank for rank, member in enumerate(members)}
        self._registered.append(group)
        return group


def _ranks_of(group):
    return distributed.get_process_group_ranks(group) if group else [0]


def _own_store(members, kind):
    """(prefix, store under it) of the ranks `members` and of one job; (prefix, None) for one rank."""
    name = kind + "_".join(map(str, members))
    _jobs[name] += 1
    prefix = f"gradweave_{name}_{_jobs[name]}"
    if len(members) == 1:
        return prefix, None
    return prefix, distributed.PrefixStore(prefix, distributed.distributed_c10d._get_default_store())
