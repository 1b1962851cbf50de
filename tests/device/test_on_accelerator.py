"""scripts/on-accelerator, on the simulated accelerator and, for its times, on the processor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradweave.lab import hosts

PROGRAM = Path(__file__).parent / "on_accelerator.py"


def report(folder, *arguments):
    done = subprocess.run([sys.executable, PROGRAM, *arguments, "-o", folder], capture_output=True, text=True, timeout=170,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "report.md").read_text()


def test_all_is_well_on_the_simulated_accelerator(tmp_path):
    text = report(tmp_path, "--device", "sim", "--schemes", "deft")
    assert "| `deft` | equal bits |" in text
    assert "| resumed | 1 of 1 schemes as on the processor | - |" in text and text.endswith("All as it should be.\n")
    assert (tmp_path / "timeline-deft.json").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.skipif(hosts.unavailable_reason() is not None, reason="no network of its own here")
def test_times_stand_beside_those_of_distributed_data_parallel(tmp_path):
    text = report(tmp_path, "--device", "cpu", "--schemes", "dear", "--rounds", "1")
    assert "| DistributedDataParallel |" in text and "| dear |" in text.split("Times over a shaped link")[1]


def test_what_cannot_be_tried_is_one_sentence(tmp_path):
    for arguments, said in ((["--schemes", "nothing"], "there is no nothing"), ([], "torch sees no accelerator here")):
        done = subprocess.run([sys.executable, PROGRAM, *arguments, "--rounds", "0"], capture_output=True, text=True,
                              env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr
