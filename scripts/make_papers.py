#!/usr/bin/env python3
"""Fills the table of docs/papers.md with what `gradweave` computes on the examples.

    python scripts/make_papers.py                     plan and simulate every run of every claim
    python scripts/make_papers.py --blank             leave Gradweave's column empty, run nothing
    python scripts/make_papers.py --gradweave PATH    with that command instead of build/gradweave
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from papers.claims import all_claims

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- generated: papers -->\n", "<!-- end: papers -->"


class Infeasible(Exception):
    """A planner found that it would never update; carries its reason."""


class Simulator:
    """Plans and simulates with the command line, each distinct run once."""

    def __init__(self, command):
        self.command = command
        self.known = {}

    def call(self, *arguments):
        result = subprocess.run([self.command, *map(str, arguments)], capture_output=True, text=True, check=False)
        if result.returncode:
            answer = json.loads(result.stdout) if result.stdout.lstrip().startswith("{") else {}
            if "starves" in answer:
                raise Infeasible(answer["starves"])
            raise SystemExit(f"{self.command} {' '.join(map(str, arguments))}\n{result.stderr}")
        return result.stdout

    def simulate(self, workload, cluster, run):
        key = (workload, cluster, run.scheme, tuple(run.options.items()))
        if key not in self.known:
            inputs = ["--workload", ROOT / f"examples/workloads/{workload}.json",
                      "--cluster", ROOT / f"examples/clusters/{cluster}.json"]
            settings = [part for name, value in run.options.items() for part in ("--set", f"{name}={value}")]
            with tempfile.TemporaryDirectory() as folder:
                plan = Path(folder) / "plan.json"
                self.call("plan", *inputs, "--scheme", run.scheme, *settings, "-o", plan)
                self.known[key] = json.loads(self.call("simulate", "--plan", plan, *inputs, "--json"))
        return self.known[key]


def compute_of(workload):
    layers = json.loads((ROOT / f"examples/workloads/{workload}.json").read_text(encoding="utf-8"))["layers"]
    return sum(layer["forward_us"] for layer in layers), sum(layer["backward_us"] for layer in layers)


def value_of(claim, simulator):
    if simulator is None:
        return ""
    try:
        results = [simulator.simulate(claim.workload, claim.cluster, run) for run in claim.runs]
    except Infeasible as reason:
        return f"infeasible: {reason}"
    return claim.value(results, compute_of(claim.workload))


def table(claims, simulator):
    lines = ["| paper | where | claim | the paper's figure | Gradweave | workload, cluster | schemes | remark |",
             "|---|---|---|--:|--:|---|---|---|"]
    for claim in claims:
        schemes = ", ".join(run.label() for run in claim.runs)
        lines.append(f"| {claim.paper} | {claim.place} | {claim.claim} | {claim.figure} | {value_of(claim, simulator)} "
                     f"| {claim.workload}, {claim.cluster} | {schemes} | {claim.remark} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Regenerate the table of docs/papers.md.")
    parser.add_argument("--gradweave", default=ROOT / "build/gradweave", help="the command (default: build/gradweave)")
    parser.add_argument("--blank", action="store_true", help="run nothing, leave Gradweave's column empty")
    arguments = parser.parse_args()
    if not arguments.blank and not Path(arguments.gradweave).is_file():
        raise SystemExit(f"{arguments.gradweave} is missing: run `make build`, or name the command with --gradweave")
    document = ROOT / "docs/papers.md"
    before, rest = document.read_text(encoding="utf-8").split(BEGIN)
    body = table(all_claims(), None if arguments.blank else Simulator(arguments.gradweave))
    document.write_text(before + BEGIN + body + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
