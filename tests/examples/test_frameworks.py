"""The blocks of docs/frameworks.md run as they stand, and the scripts before and after have the same bits."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "runtime")]

import ranks  # noqa: E402  the path is set above
from gradweave.lab.meeting import Meeting  # noqa: E402

PAGE = (ROOT / "docs/frameworks.md").read_text()
BLOCKS = re.findall(r"^## ([^\n]*)\n\n```python\n(.*?)^```", PAGE, re.M | re.S)
ISLANDS = re.findall(r"^```python\n(.*?)^```", PAGE[PAGE.index("\n## Islands\n"):PAGE.index("\n## What holds for all\n")],
                     re.M | re.S)
MEETING = 'islands="host:29600", key="job.key"'
without_transformers = importlib.util.find_spec("transformers") is None
needs_transformers = pytest.mark.skipif(without_transformers, reason="pip install -r scripts/requirements-trials.txt")


def run_blocks(rank, blocks):
    import gradweave
    from accelerate.state import AcceleratorState
    from gradweave.subclasses import sessions

    os.chdir(os.environ["JOB_FOLDER"])
    os.environ |= {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"}  # as torchrun does
    equal = []
    for block in blocks:
        AcceleratorState._reset_state(reset_partial_state=True)
        names = {"__name__": "__main__"}
        exec(compile(block, "docs/frameworks.md", "exec"), names)
        left = [session for session in set(sessions.values())]
        equal.append([session.plan and session.plan["scheme"] for session in left])
        for session in left:
            gradweave.finish(session.model)  # compares ranks
            session.close()
    return equal


def test_there_are_blocks():
    assert [name for name, _ in BLOCKS] == ["Accelerate", "The Trainer", "Lightning", "Fabric"]


@pytest.mark.slow
def test_blocks_run():
    blocks = [block for name, block in BLOCKS if not (without_transformers and name == "The Trainer")]
    for schemes in ranks.run(run_blocks, 2, blocks=blocks):
        assert schemes == [[] if "lightning.Trainer" in block else ["dear"] for block in blocks]


@pytest.mark.slow
def test_blocks_run_as_an_island(tmp_path):
    assert PAGE.count(MEETING) == 6
    lines = [block.replace('scheme="dear"', f'scheme="dear", {MEETING}') for name, block in BLOCKS
             if not (without_transformers and name == "The Trainer")]
    meetings = []
    try:
        blocks = []
        for number, block in enumerate(lines + ISLANDS):
            (tmp_path / str(number)).mkdir()
            meetings.append(Meeting(tmp_path / str(number)))
            address, key = meetings[-1].given.values()
            blocks.append(block.replace(MEETING, f'islands="{address}", key="{key}"'))
            assert blocks[-1] != block
        for schemes in ranks.run(run_blocks, 2, blocks=blocks):
            assert schemes[:len(lines)] == [[] if "lightning.Trainer" in block else ["dear"] for block in lines]
            assert schemes[len(lines)] != [None] == schemes[-1]
    finally:
        for meeting in meetings:
            meeting.end()


def total_of(script, *arguments):
    """The sum of parameters that both ranks print."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           ROOT / "examples/python" / script, *arguments], env=environment, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    totals = re.findall(r"sum of parameters (\S+)", done.stdout)
    assert len(totals) == 2 and len(set(totals)) == 1, done.stdout
    return totals[0]


@pytest.mark.slow
def test_before_and_after():
    assert total_of("before.py") == total_of("after.py")


@pytest.mark.slow
@pytest.mark.parametrize("script", [pytest.param("huggingface.py", marks=needs_transformers), "lightning_module.py"])
def test_scripts_of_frameworks(tmp_path, script):
    before = total_of(script, "--folder", tmp_path / "before")
    assert total_of(script, "--folder", tmp_path / "after", "--scheme", "auto") == before
    if script == "huggingface.py":
        assert total_of(script, "--folder", tmp_path / "before", "--scheme", "dear", "--resume") == before
