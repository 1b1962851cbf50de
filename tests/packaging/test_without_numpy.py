"""NumPy comes with the test packages, not with what training needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

JOB = """
import sys
sys.modules["numpy"] = None
import torch, gradweave
torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), warm_up=2)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.rand(4, 8)).sum().backward()
    optimizer.step()
gradweave.finish(model)
print("trained")
"""


@pytest.mark.slow
def test_training_needs_no_numpy():
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python", sys.executable,
           "-c", JOB]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python"), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(job, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("trained") == 2, done.stdout + done.stderr
