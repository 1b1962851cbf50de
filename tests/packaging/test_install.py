"""What `cmake --install` gives serves somebody else's project."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("GRADWEAVE_BUILD", ROOT / "build"))
GIVEN = [ROOT / "examples" / "workloads" / "tiny.json", ROOT / "examples" / "clusters" / "tiny-4.json"]
CONSUMER = ROOT / "tests" / "packaging" / "consumer"


PROGRAM = """
#include <torch/torch.h>
#include <gradweave/torch.h>

int main() {
  const gradweave::Job job = gradweave::job_of_environment();
  const auto group = gradweave::gloo_group(job, "mine");
  torch::nn::Linear model(2, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  gradweave::Session session(*model, optimizer, job);
  session.finish();
}
"""


def run(*arguments, timeout=300, **more):
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=timeout, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    path = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", path)
    return path


@pytest.fixture(scope="module")
def predicted(prefix):
    """What the installed command says."""
    printed = run(prefix / "bin" / "gradweave", "compare", "--workload", GIVEN[0], "--cluster", GIVEN[1], "--schemes", "dear",
                  "--json")
    return round(json.loads(printed)["schemes"][0]["iteration_us"] * 1000)


def test_all_parts_are_there(prefix):
    for pattern in ("include/gradweave/plan.h", "lib*/**/libgradweave.a", "lib*/**/gradweaveConfig.cmake",
                    "lib*/**/gradweave.pc", "share/man/man1/gradweave.1", "share/bash-completion/completions/gradweave",
                    "share/zsh/site-functions/_gradweave", "share/fish/vendor_completions.d/gradweave.fish"):
        assert len(list(prefix.glob(pattern))) == 1, pattern
    assert str(ROOT) not in "".join(path.read_text() for path in prefix.glob("lib*/**/*.cmake"))


def test_a_project_finds_the_package(prefix, predicted, tmp_path):
    run("cmake", "-S", CONSUMER, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    assert int(run(tmp_path / "consumer", *GIVEN)) == predicted


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="apt-get install pkg-config")
def test_pkg_config_finds_the_library(prefix, predicted, tmp_path):
    found, = prefix.glob("lib*/**/gradweave.pc")
    flags = run("pkg-config", "--static", "--cflags", "--libs", "gradweave",
                env=os.environ | {"PKG_CONFIG_PATH": str(found.parent)}).split()
    run("c++", "-std=c++20", CONSUMER / "main.cc", "-o", tmp_path / "consumer", *flags)
    assert int(run(tmp_path / "consumer", *GIVEN)) == predicted


def test_one_version_everywhere():
    version = re.search(r"project\(gradweave VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{version}"\n' in (ROOT / "packaging" / "core" / "pyproject.toml").read_text()
    assert f'\n__version__ = "{version}"\n' in (ROOT / "python" / "gradweave" / "__init__.py").read_text()
    assert run(BUILD / "gradweave", "--version").strip() == version


def test_one_range_of_torch_everywhere():
    """As in python/gradweave/releases.py."""
    sys.path.insert(0, str(ROOT / "python"))
    from gradweave import releases
    oldest, newest = (".".join(map(str, minor)) for minor in (releases.OLDEST, releases.NEWEST))
    project, cmake = (ROOT / "pyproject.toml").read_text(), (ROOT / "cmake" / "libtorch.cmake").read_text()
    assert f'requires = ["scikit-build-core>=0.10", "{releases.RANGE}"]' in project
    assert f'dependencies = ["{releases.RANGE}"]' in project
    assert f"GRADWEAVE_TORCH_OLDEST {oldest})" in cmake and f"GRADWEAVE_TORCH_NEWEST {newest})" in cmake
    assert f"PyTorch {oldest} to {newest}" in (ROOT / "README.md").read_text()
    assert f"pip install '{releases.RANGE}'" in (ROOT / "docs/install.md").read_text()


@pytest.mark.slow
def test_a_project_trains_from_an_installation(prefix, tmp_path):
    torch = pytest.importorskip("torch")
    run("cmake", "--build", BUILD, "--target", "gradweave_session", timeout=1200)
    run("cmake", "--install", BUILD, "--prefix", prefix, "--component", "torch")
    assert str(ROOT) not in "".join(path.read_text() for path in prefix.glob("lib*/**/gradweaveTorch*.cmake"))
    run("cmake", "-S", ROOT / "examples" / "cpp", "-B", tmp_path, "-DCMAKE_BUILD_TYPE=Debug",
        f"-DCMAKE_PREFIX_PATH={prefix};{torch.utils.cmake_prefix_path}")
    run("cmake", "--build", tmp_path)
    assert "loss" in run(tmp_path / "train", "--scheme", "dear", env=os.environ | {"RANK": "0", "WORLD_SIZE": "1"})

    # After torch's own header, and without those of c10d.
    (tmp_path / "main.cc").write_text(PROGRAM)
    folder = Path(torch.__file__).parent
    run("c++", "-std=c++20", "-fsyntax-only", "-I", prefix / "include", "-isystem", folder / "include", "-isystem",
        folder / "include/torch/csrc/api/include", tmp_path / "main.cc")

    # Beside another torch: one sentence.
    other = tmp_path / "torch"
    (other / "share/cmake/Torch").mkdir(parents=True)
    (other / "share/cmake/Torch/TorchConfig.cmake").touch()
    (other / "version.py").write_text("__version__ = '2.10.0+cpu'\n")
    done = subprocess.run(["cmake", "-S", ROOT / "examples" / "cpp", "-B", tmp_path / "refused",
                           f"-DCMAKE_PREFIX_PATH={prefix};{other / 'share/cmake'}"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode and "is torch 2.10.0+cpu" in " ".join(done.stderr.split()), done.stderr
