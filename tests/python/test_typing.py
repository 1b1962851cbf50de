"""What users' type checkers see: mypy --strict passes scripts that are right, and finds what is wrong in others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import accelerate  # type: ignore[import-untyped]
import torch
from torch import nn

import gradweave.core
import gradweave.integrations.accelerate


def train() -> float:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer = gradweave.wrap(model, optimizer, scheme="dear", links=[gradweave.EmulatedLink(1, 2)])
    optimizer.param_groups[0]["lr"] = 0.2
    with model.no_sync():
        model(torch.rand(4)).sum().backward()
    ops: int = model.gradweave.counters["ops"]
    model.gradweave.record_timeline()
    found = model.gradweave.report("page.html")
    if found is not None:
        print(found["text"])
    gradweave.core.write_report("page.html", timelines=[model.gradweave.timeline()])
    norm = gradweave.clip_grad_norm_(model, 1.0)
    gradweave.finish(model)
    model.gradweave.close()
    return norm.item() + ops


def train_two(model: nn.Module, first: torch.optim.SGD, second: torch.optim.SGD) -> None:
    with gradweave.wrap(model, [first, second]) as (wrapped, [one, two]):
        one.step()
        wrapped.gradweave.skip_step()


def accelerated() -> accelerate.Accelerator:
    return gradweave.integrations.accelerate.wrap(accelerate.Accelerator(cpu=True), scheme="dear")
"""

WRONG = {
    'gradweave.wrap(model, optimizer, shceme="dear")': '"shceme"',
    "gradweave.wrap(model, 3)": '"int"',
    "gradweave.warp(model, optimizer)": '"warp"',
    "gradweave.wrap(model, optimizer)[0].gradweave.reprot()": '"reprot"',
    "gradweave.wrap(model, optimizer, timeout='3')": '"timeout"',
}


def mypy(folder, *arguments):
    # Torch takes half a minute to read, once.
    environment = os.environ | {"MYPYPATH": str(ROOT / "python")}
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", ROOT / "out" / "mypy", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_a_right_script_passes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = mypy(tmp_path, "--strict", "script.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_examples_pass(tmp_path):
    # The others are about frameworks, which take mypy minutes.
    examples = [ROOT / "examples" / name for name in ("python/after.py", "python/resume.py", "islands/sampler.py")]
    done = mypy(tmp_path, "--check-untyped-defs", *examples)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_wrong_calls_are_found(tmp_path):
    lines = ["import torch", "import gradweave", "model = torch.nn.Linear(1, 1)",
             "optimizer = torch.optim.SGD(model.parameters())"]
    (tmp_path / "script.py").write_text("\n".join([*lines, *WRONG]) + "\n")
    done = mypy(tmp_path, "--strict", "script.py")
    assert done.returncode == 1, done.stderr
    found = done.stdout.splitlines()
    for number, word in enumerate(WRONG.values(), len(lines) + 1):
        assert any(line.startswith(f"script.py:{number}: error") and word in line for line in found), done.stdout
