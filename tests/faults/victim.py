"""What a rank of the driver's job runs: an ordinary loop, in which one rank is struck."""

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from torch import distributed, nn

from case import ARRIVAL_S, ITERATIONS, PROFILED, TIMEOUT_S, WARM_UP, Case
from models import batch, make_net, make_optimizer

END_S = 60  # for the driver to say how the others ended


class Injected(Exception):
    """The error of the user's, on the victim."""


class Strike:
    """The fault of this rank, if it is the victim: happens once, where the case says."""

    def __init__(self, case, rank, folder):
        self.case, self.folder, self.armed = case, folder, rank == case.victim and case.fault not in ("uneven", "skip")

    def at(self, iteration, moment):
        if self.armed and (iteration, moment) == (self.case.iteration, self.case.moment):
            self.happen()

    @contextlib.contextmanager
    def during(self, here):
        """A call of Gradweave's: the fault happens after as many calls in it as the case says, or at its end."""
        if not (self.armed and here):
            yield
            return
        left = self.case.calls

        def count(frame, event, argument):
            nonlocal left
            if event in ("call", "c_call"):
                left -= 1
                if left < 0:
                    sys.setprofile(None)
                    self.happen()

        sys.setprofile(count)
        try:
            yield
        finally:
            sys.setprofile(None)
        if self.armed:
            self.happen()

    def happen(self):
        self.armed = False
        note(self.folder, "fault", {"time": time.monotonic()})
        if self.case.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.case.fault in ("stop", "continue"):
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.case.fault == "exit":
            sys.exit(3)
        else:
            raise Injected("the loop's own error")


def note(folder, name, content):
    """Write a file whole or not at all."""
    (folder / f".{name}").write_text(json.dumps(content))
    os.rename(folder / f".{name}", folder / name)


def run(rank, case):
    """The rank: writes how it ended into the job's folder, and ends so."""
    case, folder = Case(**case), Path(os.environ["JOB_FOLDER"])
    progress = [time.monotonic()]
    outcome = {}
    try:
        outcome = {"ended": "finished", "digest": train(case, rank, Strike(case, rank, folder), folder, progress)}
    except BaseException as error:
        outcome = {"ended": "raised", "type": type(error).__name__, "error": str(error)}
        raise
    finally:
        note(folder, f"outcome{rank}", {**outcome, "time": time.monotonic(), "progress": progress[-1]})
    deadline = time.monotonic() + END_S
    while not (folder / "end").exists():
        if time.monotonic() > deadline:
            sys.exit("the driver is gone")
        time.sleep(0.02)
    if not json.loads((folder / "end").read_text())["all_finished"]:
        sys.exit(0)  # nobody to meet at the barrier


def train(case, rank, strike, folder, progress):
    """The digest of the trained parameters."""
    import gradweave

    distributed.barrier()  # interpreters of their own take their time to import
    model = make_net(seed=rank)
    optimizer = make_optimizer("sgd", model)
    links = [gradweave.EmulatedLink(50, 0.01)] if case.emulated else None
    with strike.during(case.phase == "wrap"):
        wrapped = gradweave.wrap(model, optimizer, scheme=case.scheme, links=links, timeout=TIMEOUT_S,
                                 arrival_timeout=ARRIVAL_S, warm_up=WARM_UP, profile_iterations=PROFILED)
    model, optimizer = wrapped
    with wrapped if case.managed else contextlib.nullcontext():
        for iteration in range(ITERATIONS):
            progress.append(time.monotonic())
            odd = rank == case.victim and iteration == case.iteration
            if odd and case.fault in ("uneven", "skip"):
                note(folder, "fault", {"time": time.monotonic()})
            if odd and case.fault == "uneven":
                break
            if odd and case.fault == "skip" and case.moment == "data":
                continue
            _iterate(model, optimizer, rank, iteration, strike, skip=odd and case.fault == "skip")
        progress.append(time.monotonic())
        with strike.during(case.phase == "finish"):
            gradweave.finish(model)
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def _iterate(model, optimizer, rank, iteration, strike, skip):
    def in_forward(module, inputs, output):
        strike.at(iteration, "forward")
        output.register_hook(lambda gradient: strike.at(iteration, "backward"))

    strike.at(iteration, "data")
    x, y = batch(rank, iteration)
    optimizer.zero_grad()
    hook = model.wide.register_forward_hook(in_forward)
    loss = nn.functional.cross_entropy(model(x), y)
    hook.remove()
    loss.backward()
    strike.at(iteration, "gradients")
    if not skip:
        with strike.during(iteration == strike.case.iteration and strike.case.moment == "step"):
            optimizer.step()
    strike.at(iteration, "end")
