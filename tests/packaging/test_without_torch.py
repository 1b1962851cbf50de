"""Where torch is missing or is another than the extension needs, what needs it says so, and how to go on."""

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
    assert done.returncode == 1 and last.startswith("ImportError: gradweave.") and "pip install 'torch>=2.11," in last


OTHER_TORCH = """
import sys, types
import gradweave, gradweave.releases
sys.modules["torch"] = types.ModuleType("torch")
sys.modules["torch"].__version__ = {running!r}
gradweave.releases.built_for = lambda: {built!r}
"""


@pytest.mark.parametrize("running,built,said", [
    ("2.10.0", "2.13.0", "torch 2.10.0 is installed here, and gradweave works with torch>=2.11,"),
    ("2.14.0", "2.13.0+cpu", "the extension was built for torch 2.13.0+cpu, and torch 2.14.0 is installed here"),
    ("2.14.0", None, "the extension is not built"),
])
@pytest.mark.parametrize("call", ["gradweave.wrap", "from gradweave import _native",
                                  "import gradweave.core; gradweave.core.schemes()"])
def test_another_torch_is_one_sentence(running, built, said, call):
    done = subprocess.run([sys.executable, "-c", OTHER_TORCH.format(running=running, built=built) + call],
                          env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: gradweave.") and said in last and "make runtime" in last


def test_a_command_beside_another_torch_is_one_sentence(tmp_path):
    (tmp_path / "torch.py").write_text("__version__ = '2.10.0'\n")
    done = subprocess.run([sys.executable, "-S", "-m", "gradweave", "profile", "demo"], cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'python'}"},
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "torch 2.10.0 is installed here" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_commands_that_need_torch_say_so(tmp_path):
    # Without site-packages there is no torch.
    done = subprocess.run([sys.executable, "-S", "-m", "gradweave", "doctor"], cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "pip install 'torch>=2.11," in done.stderr, done.stderr
