"""What the ranks of a job tell each other besides gradients: first that they mean the same job, then small messages on a
group of their own."""

import hashlib
import json
import secrets

from gradweave import _native
from gradweave.groups import ARRIVAL

DIGEST = "digest "


def agree(job, arguments, refusal, arrival_s):
    """All ranks of `job` mean the same, or each of them has an error: `refusal`, if this rank has one; else InvalidInput
    naming the ranks that refuse or differ, or RuntimeFailure naming those that did not come within `arrival_s` of this one.
    `arguments`: {what: text}, alike on all ranks. Collective. Makes no group, so that nothing is left behind. Returns a name
    for the job, the same on all ranks and new for each.
    """
    post = json.dumps({"refusal": refusal and str(refusal), "arguments": arguments, "name": secrets.token_hex(8)})
    try:
        posts = job.peers.agree("gradweave.wrap()", post, arrival_s, ARRIVAL)
    except _native.RuntimeFailure:
        if not refusal:
            raise
    if refusal:
        raise refusal
    said = {rank: json.loads(text) for rank, text in enumerate(posts)}
    wrong = [f"{named([rank])} reports: {each['refusal']}" for rank, each in said.items() if each["refusal"]]
    if not wrong:
        values = {what: {rank: each["arguments"].get(what, "missing") for rank, each in said.items()}
                  for what in dict.fromkeys(what for each in said.values() for what in each["arguments"])}
        wrong = [difference(what, of) for what, of in values.items() if len(set(of.values())) > 1]
    if wrong:
        raise _native.InvalidInput(f"gradweave.wrap: {'; '.join(wrong)}; call it alike on every rank")
    return said[0]["name"]


def named(members):
    return f"rank{'s' if len(members) > 1 else ''} {' '.join(map(str, members))}"


def difference(what, values):
    """Which ranks have which value; `values`: {rank: text}."""
    groups = {}
    for rank, value in values.items():
        groups.setdefault(value, []).append(rank)
    if any(value.startswith(DIGEST) for value in groups):
        first = groups.pop(values[0])
        return ", ".join(f"{named(members)} differ{'s' if len(members) == 1 else ''} from {named(first)} in {what}"
                         for members in groups.values())
    return f"{what} differs: " + ", ".join(f"{value} on {named(members)}" for value, members in groups.items())


def digest(value):
    """Stands for a value that is too long to be told."""
    return DIGEST + hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def has_mean(tensor):
    """Whether ranks' values of it are averaged where they differ: it holds no whole numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


class Control:
    """The control messages of one job whose parameters are on `device` (src/runtime/control_group.h). All are collective, and
    every wait ends with the verdict, a RuntimeFailure. Numbers and values that a plan depends on are those of all ranks that
    have one plan, tensors and integers those of the job's."""

    def __init__(self, job, device):
        self.rank, self.size, self.decides = job.rank, job.size, job.decides
        self.peers, self.timeout_s, self.of_members = job.peers, job.timeout_s, job.of_members
        self.group = data = None
        if job.size > 1:
            self.group = job.control_group()
            # Of its own, since links use theirs from other threads.
            data = job.group_like(job.user_group, device)
        self._messages = self.planning = _native.ControlGroup(job.peers, self.group, data, device)
        self.several_groups = job.several_groups
        if job.several_groups:
            self.planning = _native.ControlGroup(job.peers, job.planning_group(), None, device)

    def from_rank_0(self, value, what="the agreement on a plan"):
        """`value` of the rank that decides on the plan, anything that JSON can write."""
        if self.size == 1 and not self.several_groups:
            return value
        text = json.dumps(value) if self.decides else ""
        return json.loads(self.peers.agree(what, text, self.timeout_s)[0])

    def largest(self, values, what):
        """Element by element the largest of all ranks' numbers."""
        return self.planning.largest(values, what)

    def of_all(self, values, what):
        """{rank: its list of integers}; all lists are of one length."""
        return dict(enumerate(self._messages.of_all(values, what)))

    def broadcast(self, tensors, what="the broadcast of parameters and buffers"):
        """From rank 0, in as few messages as DistributedDataParallel."""
        self._messages.broadcast(list(tensors), what)

    def average(self, tensors, what):
        """The means over the ranks, in place, the same bits on all. Takes a copy of all."""
        self._messages.average([tensor for tensor in tensors if tensor.numel() > 0], what)

    def moment_share(self, ranks, parameters):
        """A MomentShare of these parameters, which the job's ranks measure; `ranks` train the parts of the batch. Not
        collective."""
        return _native.MomentShare(self._messages, ranks, [parameter.numel() for parameter in parameters])

    def close(self):
        self.group = self._messages = self.planning = None
