#!/usr/bin/env python3
"""Draws docs/pictures/SCHEME.svg: each scheme's timeline on the same small workload, by the gradweave command."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKLOAD = ROOT / "examples/workloads/tiny.json"
CLUSTER = ROOT / "examples/clusters/tiny-4.json"

# Where communication takes longer than compute, so that what these do about it is seen: less is sent, gradients come
# late, averages go on behind several iterations.
SLOW_CLUSTER = {"version": 1, "workers": 4, "workers_per_node": 1, "startup_growth": "linear",
                "links": [{"name": "net", "startup_us": 30, "us_per_byte": 0.003}]}
ON_SLOW = ("covap", "deft", "delayed_averaging")
# Its buckets are of the size of DistributedDataParallel's: as many more bytes over a link as much faster.
ENLARGED = {"covap": 200}
WIDTH_US = 8000  # of every picture: one time scale

# Sizes in proportion to a model of 700 kB; averages as often as fits into a picture.
OPTIONS = {
    "ddp": {"bucket_cap_bytes": "400000", "first_bucket_bytes": "50000"},
    "horovod": {"cycle_us": "250"},
    "p3": {"partition_bytes": "100000"},
    "bytescheduler": {"partition_bytes": "100000"},
    "dear": {"layers_per_group": "1"},
    "local_sgd": {"period": "3"},
    "partial_sgd": {"period": "3"},
    "dreamddp": {"period": "3"},
}
ITERATIONS = 8


def run(command: Path, *arguments: str) -> str:
    done = subprocess.run([str(command), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gradweave {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def draw(command: Path, scheme: str, folder: Path) -> None:
    sets = [part for name, value in OPTIONS.get(scheme, {}).items() for part in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as scratch:
        factor = ENLARGED.get(scheme, 1)
        model = json.loads(WORKLOAD.read_text())
        for tensor in [tensor for layer in model["layers"] for tensor in layer["tensors"]]:
            tensor["numel"] *= factor
        machines = dict(SLOW_CLUSTER) if scheme in ON_SLOW else json.loads(CLUSTER.read_text())
        machines["links"] = [link | {"us_per_byte": link["us_per_byte"] / factor} for link in machines["links"]]
        workload, cluster = Path(scratch) / "workload.json", Path(scratch) / "cluster.json"
        workload.write_text(json.dumps(model))
        cluster.write_text(json.dumps(machines))
        common = ["--workload", str(workload), "--cluster", str(cluster)]
        plan = str(Path(scratch) / "plan.json")
        run(command, "plan", *common, "--scheme", scheme, *sets, "-o", plan)
        svg = str(folder / f"{scheme}.svg")
        run(command, "simulate", *common, "--plan", plan, "--svg", svg, "--svg-us", str(WIDTH_US),
            "--trace-iterations", str(ITERATIONS), "--json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gradweave", type=Path, default=ROOT / "build/gradweave", help="the built command")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs/pictures", help="where the pictures go")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for scheme in json.loads(run(arguments.gradweave, "schemes", "--json"))["schemes"]:
        draw(arguments.gradweave, scheme["name"], arguments.folder)


if __name__ == "__main__":
    main()
