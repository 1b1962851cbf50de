"""Starts real processes for tests: each runs one function as a rank of a Gloo group on loopback."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


def start(function, world_size, **arguments):
    """Ranks of `function` (a function of a module in this folder), each called as function(rank, **arguments).
    Returns a Job."""
    return Job(function, world_size, arguments)


def run(function, world_size, timeout=120, **arguments):
    """What `function` returned on each rank (anything torch.save can write). Fails if a rank fails."""
    return start(function, world_size, **arguments).results(timeout)


class Job:
    def __init__(self, function, world_size, arguments):
        self.folder = tempfile.TemporaryDirectory(prefix="gradweave-test-")
        torch.save(arguments, Path(self.folder.name) / "arguments")
        port = _free_port()
        self.processes = []
        for rank in range(world_size):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank),
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
                               PYTHONPATH=f"{ROOT / 'python'}:{Path(__file__).parent}")
            with open(self._log(rank), "w") as log:
                self.processes.append(subprocess.Popen(
                    [sys.executable, __file__, function.__module__, function.__name__, self.folder.name],
                    env=environment, stdout=log, stderr=subprocess.STDOUT))

    def _log(self, rank):
        return Path(self.folder.name) / f"log{rank}"

    def log(self, rank):
        return self._log(rank).read_text()

    def wait(self, rank, timeout):
        """The rank's exit status. Everything is ended when it takes too long."""
        try:
            return self.processes[rank].wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"rank {rank} did not end within {timeout} s:\n{self.log(rank)}") from None

    def wait_for_file(self, name, timeout=60):
        """Wait until a rank has written the file `name` into the job's folder."""
        path = Path(self.folder.name) / name
        deadline = time.monotonic() + timeout
        while not path.exists():
            if time.monotonic() > deadline or any(p.poll() not in (None, 0) for p in self.processes):
                self.end()
                raise AssertionError("\n".join(self.log(r) for r in range(len(self.processes))))
            time.sleep(0.02)

    def results(self, timeout=120):
        deadline = time.monotonic() + timeout
        statuses = [self.wait(rank, max(0.1, deadline - time.monotonic())) for rank in range(len(self.processes))]
        assert not any(statuses), "\n".join(f"--- rank {r}\n{self.log(r)}" for r, s in enumerate(statuses) if s)
        values = [torch.load(Path(self.folder.name) / f"result{rank}", weights_only=False)
                  for rank in range(len(self.processes))]
        self.folder.cleanup()
        return values

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _main(module, function, folder):
    import datetime
    import importlib

    from torch import distributed

    torch.set_num_threads(1)
    arguments = torch.load(Path(folder) / "arguments", weights_only=False)
    os.environ["JOB_FOLDER"] = folder
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = distributed.get_rank()
    result = getattr(importlib.import_module(module), function)(rank, **arguments)
    torch.save(result, Path(folder) / f"result{rank}")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    _main(*sys.argv[1:])
