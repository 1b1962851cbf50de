"""What the engine itself costs: one process trains over an emulated link to a second worker that does not exist.

Nothing is transported, so whatever is above compute alone is the engine's: hooks, copies, averages, waits. All methods take
turns in one process and ratios are taken within a round. Results are one JSON file, docs/results/overhead.json.

    .venv/bin/python bench/overhead.py            # about 4 minutes
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch

from gradweave import core, profiling, ranks
from gradweave.lab import demo, hosts, progress, slow_link, training, turns

RESULTS = Path(__file__).parent.parent / "docs/results/overhead.json"
WORKERS = 2


def methods(make_job, options, compute_s):
    """Compute alone, and every scheme without and with a recorded timeline; {scheme: predicted ms}."""
    workload, rest_us = profiling.profile(make_job(), "wide network", 10, 5)
    parameter_bytes = training.trained_bytes(make_job().model)
    setting = slow_link.emulated(parameter_bytes, compute_s, options.coverage, WORKERS)
    contestants, predicted = [turns.alone(make_job())], {}
    for scheme in options.schemes:
        plan = core.make_plan(workload, setting.cluster, scheme)
        predicted[scheme] = core.simulate(plan, workload, setting.cluster, optimizer_us=rest_us)["iteration_us"] / 1e3
        for recorded in (False, True):
            name = f"{scheme}, timeline recorded" if recorded else scheme
            contestants.append(turns.planned(make_job(), name, setting.emulation, plan=plan))
            contestants[-1].job.model.gradweave.record_timeline(recorded)
    return contestants, predicted


def measure(options):
    """In the one rank: the results as data."""
    torch.set_num_threads(1)
    recipe = training.Recipe()
    train_set = recipe.kind.load("train")

    def make_job():
        return recipe.make(train_set)

    with ranks.joined("overhead"):
        reference = turns.alone(make_job())
        turns.run_segment(reference, 10, 5)
        contestants, predicted = methods(make_job, options, reference.segment_seconds[0])
        with progress.Progress(options.rounds * (options.iterations + demo.WARM_UP) * len(contestants),
                               "training in turns") as bar:
            turns.run_rounds(contestants, options.rounds, options.iterations, demo.WARM_UP, bar.advance)
        rows = [{"name": contestant.name, "measured_ms": 1e3 * turns.iteration_seconds(contestant),
                 "over_compute": turns.ratio(contestants[0], contestant), "predicted_ms": predicted.get(contestant.name)}
                for contestant in contestants]
        for contestant in contestants[1:]:
            contestant.close()
    return {"coverage_rate": options.coverage, "rounds": options.rounds, "iterations": options.iterations, "methods": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", nargs="*", default=["wfbp", "deft", "delayed_averaging"])
    parser.add_argument("--coverage", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        return hosts.run_ranks([[]], [sys.executable, *sys.argv], {"GLOO_SOCKET_IFNAME": "lo", **demo.MEMORY})
    result = measure(options)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(result, indent=1) + "\n")
    for row in result["methods"]:
        middle, low, high = row["over_compute"]
        print(f"{row['name']:40} {row['measured_ms']:7.1f} ms   x {middle:.3f} [{low:.3f}-{high:.3f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
