"""What the ranks of a job tell each other besides gradients: first that they mean the same job, then small messages on a
group of their own."""

import contextlib
import hashlib
import json
import secrets
import time

import torch
from torch import distributed

from gradweave import _native

BROADCAST_BYTES = 250 << 20
DIGEST = "digest "
GROUPS = "making the process groups"


def agree(job, arguments, refusal, arrival_s):
    """All ranks of `job` mean the same, or each of them has an error: `refusal`, if this rank has one; else InvalidInput
    naming the ranks that refuse or differ, or RuntimeFailure naming those that did not come within `arrival_s` of this one.
    `arguments`: {what: text}, alike on all ranks. Collective. Makes no group, so that nothing is left behind. Returns a name
    for the job, the same on all ranks and new for each.
    """
    post = json.dumps({"refusal": refusal and str(refusal), "arguments": arguments, "name": secrets.token_hex(8)})
    posts = job.peers.agree("gradweave.wrap()", post, arrival_s, ": wrap(arrival_timeout=) says how far apart they may start")
    said = {rank: json.loads(text) for rank, text in enumerate(posts)}
    if refusal:
        raise refusal
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
        return ", ".join(f"{named(members)} {'has' if len(members) == 1 else 'have'} other {what} than {named(first)}"
                         for members in groups.values())
    return f"{what} differs: " + ", ".join(f"{value} on {named(members)}" for value, members in groups.items())


def digest(value):
    """Stands for a value that is too long to be told."""
    return DIGEST + hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class Control:
    """The control messages of one job whose parameters are on `device`. `fail(what, after_s, cause)`, once it is set, ends
    the engine too when a message has failed. All messages are collective."""

    def __init__(self, job, device):
        self.rank, self.size, self.fail = job.rank, job.size, None
        self.peers, self.timeout_s = job.peers, job.timeout.total_seconds()
        self.group = self._data = None
        self._device = device
        if job.size > 1:
            with self.together(GROUPS):
                self.group = job.control_group()
                # Of its own, since links use theirs from other threads.
                self._data = job.group_like(job.user_group, device)

    @contextlib.contextmanager
    def together(self, what):
        """A collective outside the engine: when it fails, the error says what failed and whom to suspect."""
        begin = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, _native.RuntimeFailure):
                raise
            after_s = time.monotonic() - begin
            if self.fail is None:  # there is no engine yet
                raise _native.RuntimeFailure(self.peers.give_up(what, after_s, str(error))) from error
            self.fail(what, after_s, str(error))

    def from_rank_0(self, value, what="the agreement on a plan"):
        """Rank 0's `value`, anything that JSON can write."""
        if self.size == 1:
            return value
        text = json.dumps(value) if self.rank == 0 else ""
        return json.loads(self.peers.agree(what, text, self.timeout_s)[0])

    def largest(self, values, what):
        """Element by element the largest of all ranks' numbers."""
        if self.size == 1:
            return list(values)
        box = torch.tensor(values, dtype=torch.float64)
        with self.together(what):
            self.group.allreduce(box, distributed.ReduceOp.MAX).wait()
        return box.tolist()

    def means(self, values, what):
        """Element by element the mean of all ranks' numbers."""
        box = torch.tensor(values, dtype=torch.float64)
        if self.size > 1:
            with self.together(what):
                self.group.allreduce(box, distributed.ReduceOp.SUM).wait()
        return (box / self.size).tolist()

    def begin_smallest(self, values, what):
        """Begins to find, element by element, the smallest of all ranks' numbers. Returns a function that waits for them.
        Other messages may come between, alike on all ranks."""
        if self.size == 1:
            return lambda: list(values)
        box = torch.tensor(values, dtype=torch.float64)
        with self.together(what):
            work = self.group.allreduce(box, distributed.ReduceOp.MIN)

        def end():
            with self.together(what):
                work.wait()
            return box.tolist()
        return end

    def of_all(self, values, what):
        """{rank: its list of integers}; all lists are of one length."""
        mine = torch.tensor(values, dtype=torch.int64)
        everybodys = [mine] if self.size == 1 else [torch.empty_like(mine) for _ in range(self.size)]
        if self.size > 1:
            with self.together(what):
                self.group.allgather(everybodys, mine).wait()
        return {rank: box.tolist() for rank, box in enumerate(everybodys)}

    def broadcast(self, tensors, what="the broadcast of parameters and buffers"):
        """From rank 0, in as few messages as DistributedDataParallel."""
        tensors = [tensor.detach() for tensor in tensors]
        if tensors and self.size > 1:
            with self.together(what):
                distributed._broadcast_coalesced(self._data, tensors, BROADCAST_BYTES, 0)

    def average(self, tensors, what):
        """The means over the ranks, in place, the same bits on all. Takes a copy of all."""
        if self.size == 1:
            return
        with self.together(what):
            for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
                alike = [tensor.detach() for tensor in tensors if tensor.dtype == dtype]
                box = torch.cat([tensor.to(self._device).flatten() for tensor in alike])
                self._data.allreduce(box, distributed.ReduceOp.SUM).wait()
                for tensor, mean in zip(alike, (box / self.size).split([tensor.numel() for tensor in alike])):
                    tensor.copy_(mean.view(tensor.size()))

    def close(self):
        self.group = self._data = self.fail = None
