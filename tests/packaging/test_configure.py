"""A torch that the engine is not written for, or none, is one sentence when a build is configured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("version,said", [
    ("2.10.0", "has torch 2.10.0, and gradweave needs 2.11 to "),
    ("3.0.0.dev20270101+cu140", "has torch 3.0.0.dev20270101+cu140, and gradweave needs 2.11 to "),
    (None, "has no torch: run `make deps`"),
])
def test_a_torch_outside_the_range_is_one_sentence(tmp_path, version, said):
    if version:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('configuring imports no torch')\n")
        (tmp_path / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda = None\n")
    python = tmp_path / "python"  # without site-packages
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(["cmake", f"-DPython_EXECUTABLE={python}", "-P", ROOT / "cmake" / "torch.cmake"], cwd=ROOT,
                          env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert done.returncode and said in " ".join(done.stderr.split()), done.stderr
