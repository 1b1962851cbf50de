"""An emulated link for PyTorch's DistributedDataParallel, so that it can be compared with Gradweave on one."""

import queue
import threading
import time

import torch
from torch import distributed


class EmulatedHook:
    """A communication hook with which DistributedDataParallel runs over an emulated link: buckets go one after another
    and each is done no earlier than `startup_us + bytes * us_per_byte` after its turn began."""

    def __init__(self, startup_us, us_per_byte):
        self._cost = startup_us, us_per_byte
        self._buckets = queue.SimpleQueue()
        self._free = 0.0
        self._thread = threading.Thread(target=self._work, name="emulated link", daemon=True)
        self._thread.start()

    def register(self, model):
        """Make `model`, a DistributedDataParallel, use this link."""
        model.register_comm_hook(self, EmulatedHook._hook)

    def close(self):
        self._buckets.put(None)
        self._thread.join()

    def average(self, gradients):
        """A future of the mean of all ranks' `gradients`, a flat tensor, which takes it."""
        future = torch.futures.Future()
        self._buckets.put((time.perf_counter(), gradients, future))
        return future

    def _hook(self, bucket):
        return self.average(bucket.buffer())

    def _work(self):
        while (item := self._buckets.get()) is not None:
            issued, gradients, future = item
            try:
                # As DistributedDataParallel does without a hook: divided first, then summed.
                distributed.all_reduce(gradients.div_(distributed.get_world_size()))
            except Exception as error:  # it must reach the thread that waits in backward()
                future.set_exception(error)
                continue
            startup_us, us_per_byte = self._cost
            self._free = max(issued, self._free) + (startup_us + gradients.nbytes * us_per_byte) / 1e6
            time.sleep(max(0.0, self._free - time.perf_counter()))
            future.set_result(gradients)
