"""A wheel, built against the torch that is here and installed elsewhere, trains, and has the command. Second tier: it
compiles everything.

GRADWEAVE_SLOW=1 make test-runtime
"""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TRAINING = """
import torch
from torch import distributed
import gradweave

assert "site-packages" in gradweave.__file__, gradweave.__file__
distributed.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
with gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), scheme="deft", warm_up=1, profile_iterations=2) as (
        model, optimizer):
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
total = torch.stack([p.detach().sum() for p in model.parameters()])
first = total.clone()
distributed.broadcast(first, 0)
assert torch.equal(total, first)
print("trained", distributed.get_rank())
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_wheel_installs_beside_torch_and_trains(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", tmp_path, ROOT], check=True, timeout=3600)
    wheel, = tmp_path.glob("gradweave-*.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gradweave/lab")]
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--no-deps", "--no-index", wheel], check=True, timeout=300)
    tiny = ["--workload", ROOT / "examples/workloads/tiny.json", "--cluster", ROOT / "examples/clusters/tiny-4.json"]
    done = subprocess.run([tmp_path / "venv/bin/gradweave", "compare", *tiny, "--schemes", "dear"], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0 and "dear" in done.stdout, done.stderr
    done = subprocess.run([python, "-c", "import gradweave; gradweave.wrap"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 1 and "pip install 'torch" in done.stderr, done.stderr
    # Torch is found where it is installed already: a second one would take a gigabyte.
    site = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True,
                               capture_output=True, text=True).stdout.strip())
    (site / "torch.pth").write_text(f"{os.environ.get('GRADWEAVE_TORCH', sysconfig.get_path('purelib'))}\n")
    (tmp_path / "train.py").write_text(TRAINING)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"],
                          cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("trained") == 2, done.stdout + done.stderr
