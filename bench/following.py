"""A link whose rate changes in mid-training: a plan that follows it, one that stays, and an oracle that knows the rate.

Two ranks train the small network on Fashion-MNIST over a shaped link between hosts (network namespaces). The rate is
changed on both ends at once, at iterations that all three share; the oracle puts the plan for the true rate in force there.
Each is a training of its own, one after another, several times over; the figure is the mean time of an iteration, from fifty
iterations after a change to the next. Results are one JSON file, docs/results/following.json.

    .venv/bin/python bench/following.py           # 10 minutes; needs root, or user namespaces
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

import gradweave
from gradweave import core, ranks
from gradweave.lab import hosts, training

RESULTS = Path(__file__).parent.parent / "docs/results/following.json"
WORKERS, SETTLES = 2, 50
WAYS = ("stays", "follows", "oracle")
OPTIONS = {"allow": "exact+corrected"}


def train(options, way):
    """On every rank: [mean seconds of an iteration in each phase, the plans' schemes]."""
    torch.set_num_threads(1)
    interface = hosts.interface_of(0)
    hosts.shape_interface(interface, options.rates[0] * 1e6)
    job = training.recipe_of("small").make(_data(), ranks.rank(), WORKERS)
    model, optimizer = gradweave.wrap(job.model, job.optimizer, options=OPTIONS, follow=way == "follows", report=False)
    job.optimizer = optimizer
    training.train(job, 12 + 8 + SETTLES)
    means, schemes, before = [], [], options.rates[0]
    cluster = model.gradweave.cluster
    for rate in options.rates:
        hosts.shape_interface(interface, rate * 1e6)
        torch.distributed.barrier()
        if way == "oracle" and rate != before:
            link = cluster["links"][0]
            factor = before / rate
            cluster = {**cluster, "links": [_slower(link, factor)]}
            plan = core.make_plan(model.gradweave.workload, cluster, "auto", OPTIONS)
            model.gradweave.install(plan)
        before = rate
        training.train(job, SETTLES)
        torch.distributed.barrier()
        begin = time.perf_counter()
        training.train(job, options.iterations)
        means.append(ranks.agreed((time.perf_counter() - begin) / options.iterations))
        schemes.append(model.gradweave.plan["finding"]["chosen"]["scheme"])
    gradweave.finish(model)
    model.gradweave.close()
    return means, schemes


def _slower(link, factor):
    halves = {half: {**link[half], "us_per_byte": link[half]["us_per_byte"] * factor}
              for half in ("reduce_scatter", "all_gather") if half in link}
    return {**link, **halves, "us_per_byte": link["us_per_byte"] * factor}


def _data():
    from gradweave.lab import fashion_mnist

    return fashion_mnist.load("train")


def rank_main(options):
    with ranks.joined("following"):
        results = [{"way": way, "ms": [1e3 * each for each in means], "schemes": schemes}
                   for _ in range(options.rounds) for way in WAYS for means, schemes in [train(options, way)]]
        first = ranks.is_first()
    if first:
        options.results.parent.mkdir(exist_ok=True)
        options.results.write_text(json.dumps({"rates_mbit": options.rates, "iterations": options.iterations,
                                               "results": results}, indent=1) + "\n")
        print(table(options.rates, results))


def table(rates, results):
    """Milliseconds of an iteration, the median of all rounds, by phase; then how much longer than the oracle's."""
    def row(way):
        return [statistics.median(each["ms"][phase] for each in results if each["way"] == way) for phase in range(len(rates))]

    rows = {way: row(way) for way in WAYS}
    lines = ["| rate in Mb/s | " + " | ".join(f"{rate:g}" for rate in rates) + " |",
             "|---|" + "---:|" * len(rates)]
    lines += [f"| {way}: ms an iteration | " + " | ".join(f"{value:.1f}" for value in rows[way]) + " |" for way in WAYS]
    lines += [f"| {way}, times the oracle | " + " | ".join(f"{a / b:.2f}" for a, b in zip(rows[way], rows["oracle"])) + " |"
              for way in WAYS[:2]]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=lambda text: [float(each) for each in text.split(",")], default=[200, 50, 400, 100],
                        help="Mb/s, one after another")
    parser.add_argument("--iterations", type=int, default=100, help="that are timed after each change")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options)
        return 0
    hosts.become_root_of_namespace(sys.argv)
    with hosts.Hosts(WORKERS) as machines:
        return machines.run([sys.executable, *sys.argv], cpus=range(WORKERS))


if __name__ == "__main__":
    sys.exit(main())
