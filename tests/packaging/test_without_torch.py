"""Where torch is missing, what needs it says so, and how to go on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("call", ["gradweave.wrap", "gradweave.EmulatedLink(1, 1)", "gradweave.core.schemes()"])
def test_what_needs_torch_says_so(call):
    script = f"import sys; sys.modules['torch'] = None; import gradweave.core; {call}"
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
                          capture_output=True, text=True, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: gradweave.") and "pip install torch==2.13.0" in last


def test_commands_that_need_torch_say_so(tmp_path):
    # Without site-packages there is no torch.
    done = subprocess.run([sys.executable, "-S", "-m", "gradweave", "doctor"], cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "pip install torch==2.13.0" in done.stderr, done.stderr
