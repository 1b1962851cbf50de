"""`python -m gradweave probe|profile|doctor` as a user starts them: real ranks, files that the planner reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from gradweave import cli

ROOT = Path(__file__).resolve().parents[2]
PLANNER = Path(os.environ.get("GRADWEAVE_COMMAND", ROOT / "build" / "gradweave"))
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

JOB = """
import torch
def job():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    batches = [(torch.randn(16, 64), torch.zeros(16, dtype=torch.long))] * 3
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.functional.cross_entropy, batches
def few():
    *others, batches = job()
    return *others, iter(batches)
def named():
    *others, batches = job()
    return *others, [{"x": x, "y": y} for x, y in batches]
"""


def python(folder, *arguments, code=0, **variables):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": f"{ROOT / 'python'}:{folder}", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                    **variables}
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=150)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def checked(path, kind):
    content = json.loads(path.read_text())
    jsonschema.validate(content, json.loads((ROOT / "schema" / f"{kind}.schema.json").read_text()))
    return content


def planned(folder, workload, cluster):
    plan = folder / "plan.json"
    files = ["--workload", workload, "--cluster", cluster]
    subprocess.run([PLANNER, "plan", *files, "--scheme", "deft", "-o", plan], check=True, capture_output=True, timeout=60)
    done = subprocess.run([PLANNER, "simulate", *files, "--plan", plan, "--json"], check=True, capture_output=True, timeout=60)
    checked(plan, "plan")
    return json.loads(done.stdout)


def test_two_ranks_measure_what_the_planner_reads(tmp_path):
    (tmp_path / "mine.py").write_text(JOB)
    python(tmp_path, *TORCHRUN, "-m", "gradweave", "probe", "--interfaces", "lo", "--seconds", "0.5", "-o", "cluster.json")
    python(tmp_path, *TORCHRUN, "-m", "gradweave", "profile", "mine:job", "--iterations", "5", "-o", "workload.json")
    cluster = checked(tmp_path / "cluster.json", "cluster")
    workload = checked(tmp_path / "workload.json", "workload")
    assert cluster["workers"] == 2 and [link["name"] for link in cluster["links"]] == ["lo"]
    assert cluster["links"][0]["us_per_byte"] >= 0  # 0 where the noise of a busy machine hides the rate
    assert [tensor["numel"] for layer in workload["layers"] for tensor in layer["tensors"]] == [64 * 256, 256, 256 * 8, 8]
    figures = planned(tmp_path, tmp_path / "workload.json", tmp_path / "cluster.json")
    compute = sum(layer["forward_us"] + layer["backward_us"] for layer in workload["layers"])
    assert figures["iteration_us"] >= compute * 0.999


@pytest.mark.parametrize("arguments, variables, words", [
    (["probe"], {}, ["torchrun"]),
    (["probe", "--interfaces", "nope0"], {"RANK": "0"}, ["nope0", "lo"]),
    (["probe", "-o", "no/where.json"], {"RANK": "0"}, ["no/where.json", "no such folder"]),
    (["probe"], {"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR", "torchrun"]),
    (["profile", "theirs:nothing"], {}, ["theirs:nothing"]),
    (["profile", "theirs:few", "-o", "w.json"], {}, ["ran out", "takes 25"]),
    (["profile", "theirs:named", "-o", "w.json"], {}, ["must be a pair (inputs, targets)"]),
])
def test_errors_are_exit_code_2_and_say_what_to_do(tmp_path, monkeypatch, capsys, arguments, variables, words):
    (tmp_path / "theirs.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(arguments) == 2  # in this process, which has imported torch
    said = capsys.readouterr().err
    for word in words:
        assert word in said


def test_doctor_finds_this_installation_sound(tmp_path):
    findings = json.loads(python(tmp_path, "-m", "gradweave", "doctor", "--json").stdout)["findings"]
    assert not [finding for finding in findings if finding["state"] == "failed"]
    assert next(f for f in findings if f["name"] == "extension")["state"] == "ok"
