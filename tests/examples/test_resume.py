"""examples/python/resume.py under torchrun: ranks that are killed at any moment, and the same parameters in the end."""

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradweave import core

ROOT = Path(__file__).resolve().parents[2]
ITERATIONS = 120
_specification = importlib.util.spec_from_file_location("resume", ROOT / "examples/python/resume.py")
resume = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(resume)


def plan_of(scheme, ranks):
    """For a link on which everything is on its way at the end of an iteration."""
    layers = [{"name": name, "forward_us": 300.0, "backward_us": 600.0,
               "tensors": [{"name": f"{name}.weight", "numel": rows * columns, "dtype": "float32"},
                           {"name": f"{name}.bias", "numel": rows, "dtype": "float32"}]}
              for name, rows, columns in (("0", 256, 64), ("2", 256, 256), ("4", 10, 256))]
    cluster = {"version": 1, "workers": ranks, "workers_per_node": 1, "startup_growth": "linear",
               "links": [{"name": "link0", "startup_us": 100.0, "us_per_byte": 0.02, "concurrency": 1}]}
    return core.make_plan({"version": 1, "name": "resume", "layers": layers}, cluster, scheme)


def start(folder, plan, ranks, iterations=ITERATIONS):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts", "20",
         "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--monitor-interval", "0.1",
         ROOT / "examples/python/resume.py",
         "--folder", folder, "--plan", plan, "--iterations", str(iterations), "--every", "7"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(job):
    output, _ = job.communicate(timeout=300)
    assert job.returncode == 0, output
    # An unbuffered rank writes the end of its line later.
    return output, set(re.findall(r"sum of parameters (-?\d+\.\d+(?:e[+-]?\d+)?)", output))


def workers_of(job):
    return [int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]


def kill_one(job, folder, chance):
    """Kill a rank, once all have written another checkpoint and some time has passed. Returns whether there was one."""
    def whole():
        return resume.whole(resume.files_of(folder))

    before, until = whole(), time.monotonic() + 60
    while whole() <= before and time.monotonic() < until and job.poll() is None:
        time.sleep(0.005)
    time.sleep(0.1 * chance.random())
    workers = workers_of(job) if job.poll() is None else []
    if workers:
        os.kill(chance.choice(workers), signal.SIGKILL)
    return bool(workers)


def compare(tmp_path, scheme, ranks, kills):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(plan_of(scheme, ranks)))
    _, expected = ended(start(tmp_path / "whole", plan, ranks))
    assert len(expected) == 1
    folder = tmp_path / "killed"
    folder.mkdir()
    job, chance = start(folder, plan, ranks), random.Random(f"{scheme} {ranks}")
    killed = sum(kill_one(job, folder, chance) for _ in range(kills))
    output, found = ended(job)
    begun = re.findall(r"rank 0 begins at iteration (\d+)", output)
    assert killed and len(begun) > 1 and int(begun[-1]) > 0, output
    assert found == expected, output


def test_a_killed_job_goes_on_with_the_same_bits(tmp_path):
    compare(tmp_path, "delayed_averaging", 2, kills=1)


def test_newer_files_than_those_it_goes_on_from_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(resume, "gathered", lambda own: [own] * 2)
    for name in ("14.rank0of2", "14.rank1of2", "21.rank0of2", "21.rank1of3", "21.rank2of3"):
        (tmp_path / f"{name}.pt").touch()
    for rank in (0, 1):  # each its own
        assert resume.newest(tmp_path, rank, 2) == (14, [tmp_path / "14.rank0of2.pt", tmp_path / "14.rank1of2.pt"])
        left = {path.name for path in tmp_path.glob("21*")}
        assert left == ({"21.rank1of3.pt"} if rank == 0 else set())


@pytest.mark.parametrize(("scheme", "numbers"), [
    ("delayed_averaging", (2, 3)), ("dear", (3, 2, 1)), ("deft", (2, 3, 1, 2))])
@pytest.mark.slow  # tests/runtime/test_workers.py has the same without kills
def test_a_job_goes_on_with_another_number_of_ranks(tmp_path, scheme, numbers):
    plan, folder, until = tmp_path / "plan.json", tmp_path / "folder", 0
    for number in numbers:
        plan.write_text(json.dumps(plan_of(scheme, number)))
        output, sums = ended(start(folder, plan, number, until + 30))
        begun = re.findall(r"begins at iteration (\d+)", output)
        assert begun == [str(until // 7 * 7)] * number and len(sums) == 1, output
        until += 30


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("scheme", ["ddp", "dear", "us_byte", "deft", "covap", "partial_sgd", "dreamddp", "delayed_averaging"])
def test_kills(tmp_path, scheme, ranks):
    compare(tmp_path, scheme, ranks, kills=7)
