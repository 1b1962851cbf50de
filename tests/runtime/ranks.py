"""Starts real processes for tests: each runs one function as a rank of a Gloo group on loopback.

They are forked from a server that has imported torch once, which saves seconds for each; a `fresh` rank is a new
interpreter, which also ends as one.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from gradweave.lab.hosts import die_with_parent, free_port

ROOT = Path(__file__).resolve().parents[2]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the server must have one thread when it forks
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["gradweave.wrapping", "ranks", "models", "reference"])


def lines_told():
    """A list that gets the lines of this process's log."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("gradweave").addHandler(handler)
    return lines


def start(function, world_size, fresh=False, environment=None, prefix=(), **arguments):
    """Ranks of `function` (of a module), each called as function(rank, **arguments), with `environment` besides, which may
    depend on the rank; `prefix`: of a fresh rank's command. Returns a Job."""
    return Job(function, world_size, arguments, fresh, environment or {}, prefix)


def run(function, world_size, timeout=170, **arguments):
    """What `function` returned on each rank (anything torch.save can write). Fails if a rank fails."""
    return start(function, world_size, **arguments).results(timeout)


class _Forked:
    """A rank forked from the server, with the interface of subprocess.Popen."""

    def __init__(self, arguments, environment, log):
        self._process = _server.Process(target=_forked_main, args=(arguments, environment, str(log)))
        self._process.start()

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):  # the server may know of its end before we do
            os.kill(self._process.pid, number)

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("rank", timeout)
        return self._process.exitcode


def _forked_main(arguments, environment, log):
    die_with_parent()  # the server, which ends with the tests, however they end
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    _main(*arguments)


class Job:
    def __init__(self, function, world_size, arguments, fresh, more, prefix):
        self.folder = tempfile.TemporaryDirectory(prefix="gradweave-test-")
        torch.save(arguments, Path(self.folder.name) / "arguments")
        port = free_port()
        self.processes = []
        folders = [ROOT / "python", Path(__file__).parent, Path(function.__code__.co_filename).parent]
        for rank in range(world_size):
            environment = dict(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank),
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
                               PYTHONPATH=":".join(map(str, folders))) | (more(rank) if callable(more) else more)
            command = [function.__module__, function.__name__, self.folder.name]
            if not fresh:
                self.processes.append(_Forked(command, environment, self._log(rank)))
                continue
            with open(self._log(rank), "w") as log:
                self.processes.append(subprocess.Popen([*prefix, sys.executable, __file__, *command],
                                                       env=os.environ | environment, stdout=log, stderr=subprocess.STDOUT))

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

    def wait_for_file(self, name, timeout=150):
        """Wait until a rank has written the file `name` into the job's folder."""
        path = Path(self.folder.name) / name
        deadline = time.monotonic() + timeout
        while not path.exists():
            if time.monotonic() > deadline or any(p.poll() not in (None, 0) for p in self.processes):
                self.end()
                raise AssertionError("\n".join(self.log(r) for r in range(len(self.processes))))
            time.sleep(0.02)

    def results(self, timeout=170):
        deadline = time.monotonic() + timeout
        statuses = [self.wait(rank, max(0.1, deadline - time.monotonic())) for rank in range(len(self.processes))]
        assert not any(statuses), "\n".join(f"--- rank {r}\n{self.log(r)}" for r, s in enumerate(statuses) if s)
        values = [torch.load(Path(self.folder.name) / f"result{rank}", weights_only=False)
                  for rank in range(len(self.processes))]
        self.folder.cleanup()
        return values

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


def _main(module, function, folder):
    import datetime
    import importlib

    from torch import distributed

    from gradweave import probe

    torch.set_num_threads(1)
    probe.JOB_SECONDS = 0.05  # links within a machine say nothing
    arguments = torch.load(Path(folder) / "arguments", weights_only=False)
    os.environ["JOB_FOLDER"] = folder
    backend = os.environ.get("JOB_BACKEND", "gloo")
    if "sim" in backend:
        importlib.import_module("accelerator")  # tests/device
    distributed.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
    rank = distributed.get_rank()
    result = getattr(importlib.import_module(module), function)(rank, **arguments)
    torch.save(result, Path(folder) / f"result{rank}")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    _main(*sys.argv[1:])
