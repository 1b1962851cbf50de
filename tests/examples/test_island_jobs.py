"""The files that start islands on Slurm and Kubernetes: what they would run, and that their parts fit each other."""

import os
import subprocess
from pathlib import Path

import pytest

ISLANDS = Path(__file__).resolve().parents[2] / "examples" / "islands"


def run(script, folder, fails=False, **environment):
    """(exit status, what Slurm's commands and ours were called with) of a script, where all of them only say so."""
    commands = folder / "commands"
    commands.mkdir()
    called = folder / "called"
    called.touch()
    bodies = {"scontrol": f'[ "$1" = show ] && printf "%s\\n" n3 n4 || echo scontrol "$@" >> {called}',
              "srun": f'echo srun "$@" >> {called}\nexit {int(fails)}', "gradweave": f'echo gradweave "$@" >> {called}'}
    for name, body in bodies.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o700)
    done = subprocess.run(["bash", ISLANDS / script], env={"PATH": f"{commands}:{os.environ['PATH']}", **environment},
                          stderr=subprocess.PIPE, text=True, timeout=30)
    assert not done.stderr
    return done.returncode, called.read_text().splitlines()


SLURM = {"SLURM_JOB_NODELIST": "n[3-4]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "a",
         "MEETING": "node1:29600"}
TORCHRUN = ("srun torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint n3:29400 --rdzv-id 17.{} "
            "train.py --meeting node1:29600 --key job.key --island a")


@pytest.mark.parametrize("script", ["meet.sbatch", "island.sbatch"])
def test_scripts_for_slurm_are_read(script):
    subprocess.run(["bash", "-n", ISLANDS / script], check=True)


def test_the_meeting_point_as_a_job(tmp_path):
    assert run("meet.sbatch", tmp_path, KEY="k") == (0, ["gradweave meet --listen 0.0.0.0:29600 --key k"])


def test_an_island_that_ends_well_is_not_queued_again(tmp_path):
    assert run("island.sbatch", tmp_path, **SLURM) == (0, [TORCHRUN.format(0)])


def test_an_island_that_fails_is_queued_again_until_it_has_been_often_enough(tmp_path):
    for restarts, requeued in (("3", ["scontrol requeue 17"]), ("20", [])):
        (tmp_path / restarts).mkdir()
        status, called = run("island.sbatch", tmp_path / restarts, fails=True, SLURM_RESTART_COUNT=restarts, **SLURM)
        assert status == 1 and called == [TORCHRUN.format(restarts), *requeued]


def test_parts_for_kubernetes_fit_each_other():
    yaml = pytest.importorskip("yaml")
    meet, service, names, island = yaml.safe_load_all((ISLANDS / "kubernetes.yaml").read_text())
    assert [part["kind"] for part in (meet, service, names, island)] == ["Deployment", "Service", "Service", "Job"]
    labels = meet["spec"]["template"]["metadata"]["labels"]
    assert meet["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    name, pods = island["metadata"]["name"], island["spec"]["template"]["spec"]
    assert names["metadata"]["name"] == pods["subdomain"] == names["spec"]["selector"]["job-name"] == name
    words = dict(word.lstrip("-").partition("=")[::2] for word in pods["containers"][0]["command"])
    assert words["rdzv-endpoint"] == f"{name}-0.{name}:29400" and words["island"] == name
    assert words["nnodes"] == str(island["spec"]["completions"]) == str(island["spec"]["parallelism"])
    port = service["spec"]["ports"][0]["port"]
    assert words["meeting"] == f"{service['metadata']['name']}:{port}"
    assert f"0.0.0.0:{port}" in meet["spec"]["template"]["spec"]["containers"][0]["command"]
    ledger, served = meet["spec"]["template"]["spec"]["containers"][1], service["spec"]["ports"][1]["port"]
    assert served == 29601  # of the meeting point's host: train.py's default
    assert f"0.0.0.0:{served}" in ledger["command"] and ledger["ports"] == [{"containerPort": served}]
    assert ledger["command"][-1].startswith(ledger["volumeMounts"][0]["mountPath"] + "/")
    for spec in (pods, meet["spec"]["template"]["spec"]):
        secret, mount = spec["volumes"][0], spec["containers"][0]["volumeMounts"][0]
        assert secret["secret"] == {"secretName": "island-key", "defaultMode": 0o400} and secret["name"] == mount["name"]
        assert f"{mount['mountPath']}/job.key" in "=".join(spec["containers"][0]["command"]).split("=")
