"""What Gradweave is compared with: DistributedDataParallel and its hooks, post-local SGD, Streaming DiLoCo. One row each."""

import copy
import functools
import math
from dataclasses import dataclass
from typing import Callable, Optional

import torch
from torch import distributed

from gradweave.lab import training
from streaming_diloco import StreamingDiLoCo


@dataclass(frozen=True)
class Peer:
    """`train(job, steps)` puts the peer into a lab job and returns what makes all ranks equal in the end, or None. `steps`:
    local steps between averages, which `period` chooses for a coverage rate and a job as a user would by hand; None where
    every iteration communicates. `first`: iterations until it sends as it does from then on. `timed`: whether it sends as
    many bytes as in earnest."""

    name: str
    train: Callable
    period: Optional[Callable] = None
    first: int = 1
    timed: bool = True

    def steps(self, coverage, job):
        return self.period(coverage, job) if self.period else None


def data_parallel(job, **arguments):
    job.model = torch.nn.parallel.DistributedDataParallel(job.model, **arguments)
    return job.model


def _fp16(job, steps):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    data_parallel(job).register_comm_hook(None, default_hooks.fp16_compress_hook)


WHOLE = 3  # iterations that PowerSGD's hook sends whole: its default of 1000 is longer than these runs


def _power_sgd(job, steps):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=WHOLE)
    # One bucket: it sends from callbacks, and on Gloo the messages of two may meet in another order on another rank.
    data_parallel(job, bucket_cap_mb=25).register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _post_local_sgd(job, steps):
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.algorithms.model_averaging.utils import average_parameters
    from torch.distributed.optim import PostLocalSGDOptimizer
    network = job.model
    # One rank a host: nothing is reduced between averages.
    state = post_localSGD_hook.PostLocalSGDState(None, None, start_localSGD_iter=0, post_local_gradient_allreduce=False)
    data_parallel(job).register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    job.optimizer = PostLocalSGDOptimizer(job.optimizer, PeriodicModelAverager(period=steps))
    return lambda: average_parameters(network.parameters(), distributed.group.WORLD)


FRAGMENTS = 4
# Local steps between averages at least: of 4, 12 and 32 those with which the job ends best at coverage rate 2.
LEAST = {"small": 32}
USUAL = 12


def _streaming_diloco(job, steps, **settings):
    # A fragment's message is on its way while its share of the period is computed.
    job.optimizer = StreamingDiLoCo(training.trained(job.model), job.optimizer, steps, FRAGMENTS,
                                    overlap=steps // FRAGMENTS, **settings)
    return job.optimizer.finish


def _hidden(coverage, job):
    """The period of averages that are hidden, with some room."""
    return max(LEAST.get(job, USUAL), math.ceil(1.25 * coverage))


def _of_four_bits(momentum):
    """Streaming DiLoCo with its authors' 4 bits, 1/7 of the bytes with their scales."""
    return Peer("Streaming DiLoCo, 4 bits" + ("" if momentum == 0.9 else f", outer momentum {momentum:g}"),
                functools.partial(_streaming_diloco, four_bits=True, momentum=momentum),
                lambda rate, job: _hidden(rate / 7, job), timed=False)


PEERS = (
    Peer("DDP (fp16 hook)", _fp16),
    Peer("DDP (PowerSGD hook)", _power_sgd, first=WHOLE),
    # Averages that compute waits for take at most a third of the time.
    Peer("post-local SGD", _post_local_sgd, lambda coverage, job: max(4, math.ceil(2 * coverage))),
    Peer("Streaming DiLoCo", _streaming_diloco, _hidden),
    *map(_of_four_bits, (0.9, 0.5, 0.0)))


def averaged_copy(network):
    """A copy of the bare `network` whose parameters and floating-point buffers are the mean over the ranks; training is not
    touched. Collective."""
    twin = copy.deepcopy(network)
    with torch.no_grad():
        for tensor in [*twin.parameters(), *(b for b in twin.buffers() if b.is_floating_point())]:
            distributed.all_reduce(tensor.data)
            tensor.data /= distributed.get_world_size()
    return twin
