"""The wheel without torch plans and simulates in a fresh environment. Second tier: it compiles the core, some minutes.

GRADWEAVE_SLOW=1 make test-runtime
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PLANNING = """
import json, sys
import gradweave.core

workload, cluster = (json.load(open(path)) for path in sys.argv[1:])
plan = gradweave.core.make_plan(workload, cluster, "dear")
print(gradweave.core.simulate(plan, workload, cluster)["iteration_us"])
gradweave.core.write_report("page.html", workload=workload, cluster=cluster, schemes=["ddp"])
try:
    gradweave.core.make_plan(workload, cluster, "daer")
except gradweave.InvalidInput as error:
    assert isinstance(error, ValueError) and "dear" in str(error), error
for name in ("wrap", "EmulatedLink"):
    try:
        getattr(gradweave, name)
    except ImportError as error:
        assert "install" in str(error), error
    else:
        raise AssertionError(name)
assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_the_wheel_without_torch_plans(tmp_path):
    def run(*command):
        done = subprocess.run([*map(str, command)], cwd=tmp_path, env=environment, capture_output=True, text=True,
                              timeout=3600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path, ROOT / "packaging" / "core")
    wheel, = tmp_path.glob("gradweave_core-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-index", wheel)
    files = [ROOT / "examples" / "workloads" / "tiny.json", ROOT / "examples" / "clusters" / "tiny-4.json"]
    planned = float(run(python, "-c", PLANNING, *files))
    assert (tmp_path / "page.html").stat().st_size > 1000
    printed = run(tmp_path / "venv" / "bin" / "gradweave", "compare", "--workload", files[0], "--cluster", files[1],
                  "--schemes", "dear", "--json")
    assert f'"iteration_us": {planned:g}' in printed.replace(".0,", ",")
