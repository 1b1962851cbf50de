#!/usr/bin/env python3
"""Writes tests/goldens/*.json: what every scheme does on the published workloads. Read the diff before committing it.

usage: scripts/make_goldens.py [--command build/gradweave]
"""

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDENS = ROOT / "tests" / "goldens"
INPUTS = [  # workload, cluster
    ("deft-table2-vgg19", "deft-table2-one-link"),
    ("deft-table2-vgg19", "deft-table2-two-links"),
    ("covap-table5-vgg19", "eth-30g-64"),
    ("resnet50", "eth-10g-16"),
    ("densenet201", "eth-10g-64"),
    ("bert-base", "two-nics-4"),
]
FIGURES = ["name", "iteration_us", "cycle_us", "cycle_iterations", "updates_per_iteration", "staleness_max", "lower_bound_us",
           "lower_bound", "ops_per_iteration", "bytes_per_iteration", "extra_bytes", "period"]


def golden(command, workload, cluster):
    """The figures that are a contract, one row for each scheme, sorted by name."""
    examples = ROOT / "examples"
    printed = subprocess.run(
        [command, "compare", "--json", "--workload", examples / "workloads" / f"{workload}.json",
         "--cluster", examples / "clusters" / f"{cluster}.json"], check=True, capture_output=True, text=True).stdout
    rows = [{key: row[key] for key in FIGURES + ["starves"] if key in row} for row in json.loads(printed)["schemes"]]
    return sorted(rows, key=lambda row: row["name"])


def text_of(rows):
    return "[\n" + ",\n".join(" " + json.dumps(row) for row in rows) + "\n]\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", default=ROOT / "build" / "gradweave")
    command = parser.parse_args().command
    GOLDENS.mkdir(exist_ok=True)
    for workload, cluster in INPUTS:
        (GOLDENS / f"{workload}@{cluster}.json").write_text(text_of(golden(command, workload, cluster)))


if __name__ == "__main__":
    main()
