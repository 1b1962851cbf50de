"""What a rank of the driver's job runs: an ordinary loop, in which a rank is struck."""

import atexit
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from torch import distributed, nn

from case import ARRIVAL_S, ITERATIONS, OF_THE_LOOP, PROFILED, SWITCH, TIMEOUT_S, WARM_UP, Case
from models import batch, make_net, make_optimizer
from phases import Calls

END_S = 60  # for the driver to say how the others ended


class Injected(Exception):
    """The error of the user's, on the victim."""


class Strike:
    """The fault of this rank, if it is a victim: happens once, at its call of the phase. `calls`: how many the phase makes in
    a job without a fault; None: this is that job, and they are only counted."""

    def __init__(self, case, rank, folder, calls):
        self.case, self.rank, self.folder = case, rank, folder
        self.armed = calls is not None and rank in case.victims and case.fault not in OF_THE_LOOP
        self._number = int(case.share * calls) if self.armed else None
        self._seen = False  # a call of the phase
        self._timer = None
        self.calls = Calls(self._at if self.armed else None)
        if self.armed or calls is None:
            self.calls.begin()

    def _at(self, phase, number):
        here = phase == self.case.phase
        self._seen = self._seen or here
        # A phase may make fewer calls than it did without the fault: then it strikes behind its last.
        if self.armed and ((here and number >= self._number) or (self._seen and not here and self._is_past(phase))):
            self.happen()

    def at_the_end(self):
        """The training is over."""
        self.calls.end()
        self.calls.current = "close"
        if self.armed and self._seen:
            self.happen()
        if self._timer:
            self._timer.join()

    def _is_past(self, phase):
        return phase == "close" or (self.case.phase in ("arrival", "groups", "broadcast") and phase == "warm-up")

    def happen(self):
        self.armed = False
        if self.case.delay_s:
            self._timer = threading.Timer(self.case.delay_s, self._happen)
            self._timer.daemon = True
            self._timer.start()
        else:
            self.calls.end()
            self._happen()

    def _happen(self):
        fault, own = self.case.fault, os.getpid()
        note(self.folder, f"fault{self.rank}", {"time": time.monotonic(), "phase": self.calls.current})
        if fault in ("kill", "two"):
            os.kill(own, signal.SIGKILL)
        elif fault == "terminate":
            os.kill(own, signal.SIGTERM)
        elif fault in ("stop", "pause"):
            os.kill(own, signal.SIGSTOP)
        elif fault == "store":
            os.kill(int(os.environ["STORE_PROCESS"]), signal.SIGKILL)
        elif fault == "loss":
            subprocess.run(["iptables-legacy", "-A", "INPUT", "-i", "lo", "-m", "statistic", "--mode", "random",
                            "--probability", str(self.case.loss), "-j", "DROP"], check=True)
        elif fault == "fork":
            if os.fork() == 0:
                sys.setprofile(None)
                atexit._run_exitfuncs()
                os._exit(0)
        elif fault == "interrupt":
            signal.raise_signal(signal.SIGINT)
        elif fault == "exit":
            sys.exit(3)
        else:
            raise Injected("the loop's own error")


def note(folder, name, content):
    """Write a file whole or not at all."""
    (folder / f".{name}").write_text(json.dumps(content))
    os.rename(folder / f".{name}", folder / name)


def run(rank, case, calls):
    """The rank: writes how it ended into the job's folder, and ends so. `calls`: {"first": of rank 0, "other": of the
    others}."""
    case, folder = Case(**case), Path(os.environ["JOB_FOLDER"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    progress = [time.monotonic()]
    jobs = peers_made()
    outcome = {}
    strike = Strike(case, rank, folder, calls and calls["first" if rank == 0 else "other"])
    held = []
    try:
        outcome = {"ended": "finished", "digest": train(case, rank, strike, folder, progress, held)}
    except BaseException as error:
        strike.calls.end()
        outcome = {"ended": "raised", "type": type(error).__name__, "error": str(error)}
        if case.fault != "lives on" or not isinstance(error, Injected):
            raise
        outcome["ended"] = "lives on"
    finally:
        strike.calls.end()
        got_on = max([progress[-1], *(peers.moved_s for peers in jobs)])
        note(folder, f"outcome{rank}", {**outcome, "time": time.monotonic(), "progress": got_on})
        if calls is None:
            note(folder, f"calls{rank}", strike.calls.count)
    deadline = time.monotonic() + END_S
    while not (folder / "end").exists():
        if time.monotonic() > deadline:
            sys.exit("the driver is gone")
        time.sleep(0.02)
    if not json.loads((folder / "end").read_text())["all_finished"]:
        sys.exit(0)  # nobody to meet at the barrier


def peers_made():
    """A list of what each wrap() of this process makes to know the other ranks by, also where it fails."""
    from gradweave import _native
    made, peers = [], _native.Peers

    def make(*arguments):
        made.append(peers(*arguments))
        return made[-1]

    _native.Peers = make
    return made


def train(case, rank, strike, folder, progress, held):
    """The digest of the trained parameters. `held`: keeps alive what a program that lives on still has."""
    import gradweave

    distributed.barrier()  # interpreters of their own take their time to import
    jobs = []
    with contextlib.ExitStack() as stack:
        for number in range(case.models):
            model = make_net(seed=rank)
            links = [gradweave.EmulatedLink(50, 0.01)] if case.emulated else None
            strike.calls.loop = "wrap" if number == 0 else None
            wrapped = gradweave.wrap(model, make_optimizer("sgd", model), scheme=case.scheme, links=links, timeout=TIMEOUT_S,
                                     arrival_timeout=ARRIVAL_S, warm_up=WARM_UP, profile_iterations=PROFILED, report=False,
                                     follow=case.phase == "following", tune=2 if case.phase == "tuning" else 0)
            jobs.append(wrapped)
            held.append(wrapped)
            if case.managed:
                stack.enter_context(wrapped)
        _loop(case, rank, jobs, strike, folder, progress)
        for model, _ in jobs:
            gradweave.finish(model)
    if not case.managed:
        for model, _ in jobs:
            model.gradweave.close()
    strike.at_the_end()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for model, _ in jobs for p in model.parameters())).hexdigest()


def _loop(case, rank, jobs, strike, folder, progress):
    for iteration in range(case.iterations):
        progress.append(time.monotonic())
        strike.calls.loop = ("warm-up" if iteration < WARM_UP else "profile" if iteration < SWITCH else
                             "switch" if iteration == SWITCH else
                             case.phase if case.iterations > ITERATIONS else "training")
        odd = rank in case.victims and iteration == case.iteration and case.fault in OF_THE_LOOP
        if odd:
            note(folder, f"fault{rank}", {"time": time.monotonic(), "phase": case.phase})
            if case.fault == "uneven":
                break
            if case.moment == "data":
                continue
        for model, optimizer in jobs:
            x, y = batch(rank, iteration)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            if not odd:
                optimizer.step()
    progress.append(time.monotonic())
