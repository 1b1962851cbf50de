"""NumPy comes with the test packages, not with what training needs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradweave.lab.meeting import Meeting

ROOT = Path(__file__).resolve().parents[2]

WITHOUT = """
import sys
sys.modules["numpy"] = None
"""
# A script that imports Gradweave first, so that torch is imported by it; one that imports torch first, whose own import warns.
FIRST = "from gradweave import wrap\n"
AFTER_TORCH = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import torch
assert any("NumPy" in str(each.message) for each in told)
warnings.filterwarnings("error", ".*NumPy")
"""
JOB = """
import io, os
import torch, gradweave
torch.manual_seed(0)
if torch.distributed.is_torchelastic_launched():
    torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
how = {"islands": os.environ["MEETING"], "key": os.environ["KEY"]} if "MEETING" in os.environ else {"warm_up": 2}
model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), **how)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.rand(4, 8)).sum().backward()
    optimizer.step()
torch.save(model.gradweave.state_dict(), io.BytesIO())
if "warm_up" in how:
    model.gradweave.report()
gradweave.finish(model)
print("trained")
"""


def run(*command, **more):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python"), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | more
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("first", [FIRST, AFTER_TORCH], ids=["first", "after torch"])
def test_nothing_of_gradweave_warns_of_missing_numpy(first):
    done = run("-c", WITHOUT + first + JOB)
    assert done.returncode == 0 and done.stdout == "trained\n", done.stdout + done.stderr
    assert "NumPy" not in done.stderr


def test_commands_do_not_warn_of_missing_numpy(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    for command in (["doctor"], ["train", "--help"]):
        done = subprocess.run([sys.executable, "-m", "gradweave", *command], capture_output=True, text=True, timeout=120,
                              env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'python'}"})
        assert done.returncode == 0 and "NumPy" not in done.stderr, done.stdout + done.stderr


def trained_by_two_ranks(**more):
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python", sys.executable, "-c",
               WITHOUT + JOB, **more)
    assert done.returncode == 0 and done.stdout.count("trained") == 2, done.stdout + done.stderr


@pytest.mark.slow
def test_training_needs_no_numpy():
    trained_by_two_ranks()


def test_islands_need_no_numpy(tmp_path):
    with Meeting(tmp_path) as meeting:
        trained_by_two_ranks(MEETING=meeting.address, KEY=meeting.key)


def test_the_demo_needs_no_numpy(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    done = subprocess.run([sys.executable, "-m", "gradweave", "train", "demo", "--network", "small", "--links", "emulated",
                           "--schemes", "wfbp,delayed_averaging", "--rounds", "1", "--iterations", "6", "--json",
                           "--output", tmp_path / "out"], capture_output=True, text=True, timeout=400,
                          env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'python'}"})
    assert done.returncode == 0 and "NumPy" not in done.stderr, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["setting"]["contention"] >= 1 and found["setting"]["skew"] >= 1
    assert min(found["setting"][key] for key in ("apply_us", "handover_us", "launch_us")) >= 0
    predicted = {row["name"] for row in found["contestants"] if row.get("predicted_ms", 0) > 0}
    assert predicted == {"wfbp", "delayed_averaging"}, found


def test_no_collective_is_torchs_own_of_objects():
    """They need NumPy."""
    for folder in ("python/gradweave", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not re.search(r"(?<!ctypes\.py)_object(_list)?\(|\.numpy\(", path.read_text()), path
