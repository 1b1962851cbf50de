"""A clone that was copied with all that was built in it builds in its new place."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("GRADWEAVE_BUILD", ROOT / "build"))
OTHER = "/elsewhere/gradweave"


@pytest.fixture
def copied(tmp_path):
    """A clone with what names the place where it was built."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for file in listed.split("\0"):
        if file and (ROOT / file).exists():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / file)
    for folder in ("build", "build-asan"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "build.ninja").touch()
        (tmp_path / folder / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={OTHER}\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text(f'VIRTUAL_ENV="{OTHER}/.venv"\nexport VIRTUAL_ENV\n')
    (tmp_path / ".venv/bin/torchrun").write_text(f"#!{OTHER}/.venv/bin/python3\n")
    return tmp_path


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_names_another_place_is_made_anew(copied):
    run("scripts/moved", cwd=copied)
    assert not (copied / "build").exists() and not (copied / "build-asan").exists()
    assert (copied / ".venv/bin/torchrun").read_text() == f"#!{copied}/.venv/bin/python3\n"
    assert str(copied) in (copied / ".venv/bin/activate").read_text()


def test_what_was_made_here_stays(copied):
    run("scripts/moved", cwd=copied)
    (copied / "build").mkdir()
    (copied / "build/CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={copied}\n")
    scripts = (copied / ".venv/bin/torchrun").stat().st_mtime_ns
    run("scripts/moved", cwd=copied)
    assert (copied / "build/CMakeCache.txt").exists() and (copied / ".venv/bin/torchrun").stat().st_mtime_ns == scripts


@pytest.mark.slow
def test_a_copy_builds(copied):
    run("make", "build", cwd=copied)
    assert run(copied / "build/gradweave", "--version", cwd=copied) == run(BUILD / "gradweave", "--version", cwd=ROOT)
