"""The extension is built for each release of torch that Gradweave works with, as the registry has it (most for CUDA), and
trains on processors. Second tier: it compiles everything for each, and keeps environments of some gigabytes in
GRADWEAVE_TEST_CACHE (~/.cache/gradweave-tests).

GRADWEAVE_SLOW=1 pytest tests/packaging/test_torch_releases.py
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from gradweave import releases

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("GRADWEAVE_TEST_CACHE", Path.home() / ".cache/gradweave-tests"))
# Training in every scheme, what torch is asked for besides (compile, checkpoints, scalers, FSDP's groups), and C++.
SAMPLE = ["test_parity", "test_transports", "test_wrap", "test_mixed_precision", "test_checkpoint", "test_between_steps",
          "test_moments", "test_odd_loops", "test_compile", "test_cpp"]
MINORS = [f"{releases.OLDEST[0]}.{minor}" for minor in range(releases.OLDEST[1], releases.NEWEST[1] + 1)]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RANK", "WORLD_SIZE")}

pytestmark = pytest.mark.slow


def run(*command, timeout=3600, environment=None, **more):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout,
                          env=ENVIRONMENT | (environment or {}), **more)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


@pytest.fixture(scope="module")
def registry():
    """Versions of torch, the newest first. Without what an administrator caps pip at: this is about the registry."""
    listed = run(sys.executable, "-m", "pip", "index", "versions", "torch", environment={"PIP_CONSTRAINT": os.devnull})
    return re.search(r"Available versions: (.*)", listed)[1].split(", ")


def environment_of(version):
    """The Python of a virtual environment with that torch, made once."""
    folder = CACHE / f"torch-{version}"
    if not (folder / "whole").exists():
        venv.create(folder, with_pip=True, clear=True)
        packages = [line for line in (ROOT / "scripts/requirements.txt").read_text().split()
                    if line.startswith(("numpy=", "pytest", "hypothesis="))]
        run(folder / "bin/python", "-m", "pip", "install", "--no-cache-dir", f"torch=={version}", *packages,
            environment={"PIP_CONSTRAINT": os.devnull})
        (folder / "whole").touch()
    return folder / "bin/python"


def copy_of_the_tree(folder):
    """Since the extension is built into the tree."""
    for file in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if file and (ROOT / file).exists():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
    return folder


def test_the_newest_release_is_in_the_range(registry):
    assert releases.outside(registry[0]) == ""


@pytest.mark.parametrize("minor", [minor for minor in MINORS if not torch.__version__.startswith(minor + ".")])
def test_a_release_trains(registry, minor, tmp_path):
    version = next(version for version in registry if version.startswith(minor + "."))
    python, tree = environment_of(version), copy_of_the_tree(tmp_path / "tree")
    run("cmake", "--preset", "release", "-DGRADWEAVE_TESTS=OFF", "-DGRADWEAVE_RUNTIME=ON",
        f"-DPython_EXECUTABLE={python}", cwd=tree)
    run("cmake", "--build", "build", "--target", "_native", "gradweave_cli", "gradweave_session", "example_train", cwd=tree)
    environment = {"PYTHONPATH": str(tree / "python"), "GRADWEAVE_BUILD": str(tree / "build")}
    device = run(python, "-c", "import torch; print(torch.version.cuda)").strip()

    # It says what it is, and beside another torch what is wrong.
    assert f"built for torch {version.split('+')[0]}" in subprocess.run(
        [python, "-m", "gradweave", "doctor"], env=ENVIRONMENT | environment, capture_output=True, text=True).stdout
    here = subprocess.run([sys.executable, "-c", "import gradweave; gradweave.wrap"], env=ENVIRONMENT | environment,
                          capture_output=True, text=True, timeout=120)
    assert here.returncode == 1 and "built for torch" in here.stderr.splitlines()[-1], here.stderr

    tests = [tree / "tests/runtime" / f"{name}.py" for name in SAMPLE]
    passed = run(python, "-m", "pytest", "-q", "-n", "3", "-p", "no:cacheprovider", *tests, cwd=tree, environment=environment)
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", tree / "tests/packaging/test_install.py", "-k", "trains",
        cwd=tree, environment=environment | {"GRADWEAVE_SLOW": "1"})
    print(f"torch {version} (CUDA {device}): {passed.strip().splitlines()[-1]}")
