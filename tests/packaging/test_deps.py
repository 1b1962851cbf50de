"""scripts/deps on a system without dpkg: it names what is missing by that system's packages, and installs nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = "bash env cat sed grep dirname sha256sum cut rm xargs make cmake ninja python3".split()


def deps(folder, what, *managers, without=(), **variables):
    """Runs scripts/deps with a path that has these package managers and no dpkg. Where it is to be `without` a command or a
    header the compiler is a stand-in that lacks it, else the real one."""
    folder.mkdir()
    for tool in TOOLS + ([] if without else ["c++", "as"]):
        if tool not in without:
            (folder / tool).symlink_to(shutil.which(tool))
    lacks = "|".join(f"*'<{header}>'*" for header in without)
    stand_ins = {manager: "echo 'nothing is installed in this test'\nexit 9\n" for manager in managers}
    if without:
        stand_ins["c++"] = f"read -r line\ncase $line in {lacks}) exit 1 ;; esac\n"
    for name, text in stand_ins.items():
        (folder / name).write_text(f"#!{shutil.which('bash')}\n{text}")
        (folder / name).chmod(0o755)
    names = {name: value for name, value in os.environ.items() if name not in ("CONDA_PREFIX", "CXX")}
    return subprocess.run([ROOT / "scripts" / "deps", what], env=names | {"PATH": str(folder)} | variables,
                          capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("managers,variables,said", [
    (["dnf"], {}, "sudo dnf install ninja-build asio-devel"),
    (["pacman"], {}, "sudo pacman -S ninja asio"),
    (["dnf"], {"CONDA_PREFIX": "/nowhere"}, "conda install -c conda-forge ninja asio"),
    ([], {}, "whose package is not known here: ninja asio.hpp"),
])
def test_what_is_missing_is_named(managers, variables, said, tmp_path):
    done = deps(tmp_path / "bin", "core", *managers, without=("ninja", "asio.hpp"), **variables)
    assert done.returncode == 2 and said in done.stderr and "docs/install.md" in done.stderr, done.stderr


@pytest.mark.parametrize("what", ["core", "tests"])
def test_nothing_is_said_where_all_is_there(what, tmp_path):
    """By the real compiler: no header is misspelt."""
    done = deps(tmp_path / "bin", what, "dnf")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_tests_and_checks_say_what_they_need(tmp_path):
    done = deps(tmp_path / "tests", "tests", "dnf", without=("gtest/gtest.h", "rapidcheck.h"))
    assert done.returncode == 2 and "dnf install gtest-devel\n" in done.stderr and "rapidcheck.h" in done.stderr
    done = deps(tmp_path / "checks", "checks", "dnf")
    assert done.returncode == 2 and "Debian 12" in done.stderr
