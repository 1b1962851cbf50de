"""What the ranks of a job tell each other besides gradients: small messages on a group of their own."""

import contextlib
import datetime
import hashlib
import itertools
import json
import time

import torch
from torch import distributed

from gradweave import _native, ranks

BROADCAST_BYTES = 250 << 20

_jobs = itertools.count()  # alike on all ranks


class Control:
    """The control group of one job. `fail(what, after_s, cause)`, once it is set, makes an error that names suspects of
    a message that failed. All messages are collective."""

    def __init__(self, timeout_s):
        self.rank, self.size, self.fail = ranks.rank(), ranks.world_size(), None
        self.timeout_s, self.group = timeout_s, None
        self.peers = _native.Peers(self._own_store(), self.rank, self.size)
        if self.size > 1:
            self.group = distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_s))

    @contextlib.contextmanager
    def together(self, what):
        """A collective outside the engine: when it fails, the error says what failed and whom to suspect."""
        begin = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if self.fail is None or isinstance(error, _native.RuntimeFailure):
                raise
            self.fail(what, time.monotonic() - begin, str(error))

    def from_rank_0(self, value):
        """Rank 0's `value`, anything that JSON can write."""
        if self.size == 1:
            return value
        text = json.dumps(value) if self.rank == 0 else ""
        return json.loads(self.peers.agree("the agreement on a plan", text, self.timeout_s)[0])

    def _own_store(self):
        """The default store under a prefix that no other job has; None with one rank."""
        if self.size == 1:
            return None
        return distributed.PrefixStore(f"gradweave/{next(_jobs)}", distributed.distributed_c10d._get_default_store())

    def check_same_model(self, model):
        """Ranks with different models would crash in the first collective, which says nothing about the reason."""
        if self.size == 1:
            return
        text = "\n".join(f"{n} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for n, p in model.named_parameters())
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        mine = torch.tensor([digest])
        everybodys = [torch.zeros_like(mine) for _ in range(self.size)]
        distributed.all_gather(everybodys, mine, group=self.group)
        differ = [str(r) for r, value in enumerate(everybodys) if value.item() != everybodys[0].item()]
        if differ:
            raise _native.InvalidInput(f"rank {', '.join(differ)} has other parameters (names, shapes, dtypes or "
                                       "which of them are frozen) than rank 0; "
                                       "build the same model on every rank")

    def broadcast(self, tensors, what="the broadcast of parameters and buffers"):
        """From rank 0, in as few messages as DistributedDataParallel."""
        tensors = [tensor.detach() for tensor in tensors]
        if tensors and self.size > 1:
            with self.together(what):
                distributed._broadcast_coalesced(distributed.group.WORLD, tensors, BROADCAST_BYTES, 0)

    def close(self):
        self.group = self.fail = None
