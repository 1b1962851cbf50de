"""Trainings whose results are lines of JSON, one for each run: a run is a dataclass that has `workers`."""

import json
import os
import sys

from gradweave.lab import hosts


def done(path, kind):
    """{run: result} of the lines in `path`; `kind`: the runs' class."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    return {kind(**line["run"]): line for line in lines}


def add(path, result):
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")


def train(missing, path, work):
    """In a rank: work(those of as many workers). Else has this program started as these ranks, for each number of workers that
    is missing; returns the exit code."""
    if "RANK" in os.environ:
        work([run for run in missing if run.workers == int(os.environ["WORLD_SIZE"])])
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    for workers in sorted({run.workers for run in missing}):
        code = hosts.run_ranks([[]] * workers, [sys.executable, *sys.argv], {"GLOO_SOCKET_IFNAME": "lo"})
        if code:
            return code
    return 0
