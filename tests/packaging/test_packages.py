"""Packages of the command and the library, as cpack makes them for three kinds of systems."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("GRADWEAVE_BUILD", Path(__file__).resolve().parents[2] / "build"))
PARTS = {"bin/gradweave", "include/gradweave/plan.h", "share/man/man1/gradweave.1",
         "share/fish/vendor_completions.d/gradweave.fish"}


def run(command):
    return subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], check=True, stdout=subprocess.PIPE, text=True).stdout


def made(kind, folder):
    """The package, in the folder."""
    run(f"cpack --config {BUILD}/CPackConfig.cmake -G {kind} -B {folder}")
    path, = folder.glob("gradweave*.*")
    return path


@pytest.mark.parametrize("kind, tool, files, needs", [
    ("RPM", "rpmbuild", "rpm -qlp {}", "rpm -qp --requires {}"),
    ("DEB", "dpkg-shlibdeps", "dpkg-deb --fsys-tarfile {} | tar -t", "dpkg-deb -f {} Depends")])
def test_a_package_has_the_command_and_the_library_and_says_what_it_needs(kind, tool, files, needs, tmp_path):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not there: another system's packages")
    package = made(kind, tmp_path)
    there = {name.partition("usr/")[2] for name in run(files.format(package)).splitlines()}
    assert PARTS <= there
    assert any(name.endswith("/libgradweave.a") for name in there)
    assert "include/gradweave/torch.h" not in there  # training is the wheel's
    assert "libssl" in run(needs.format(package))


def test_the_command_of_an_archive_runs(tmp_path):
    run(f"tar -xf {made('TGZ', tmp_path)} -C {tmp_path}")
    folder, = tmp_path.glob("gradweave-*-Linux")
    assert all((folder / part).exists() for part in PARTS)
    assert run(f"{folder}/bin/gradweave --version") == run(f"{BUILD}/gradweave --version")
