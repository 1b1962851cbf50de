"""What a change of plan costs in mid-training: from `ddp` to every other scheme and back, several times over.

Two ranks train the small network on Fashion-MNIST over a link between two hosts (network namespaces) that is shaped to
100 Mb/s, with plans for the profile and the link of that job. The cost of a change is what install() and the two iterations
after it take beyond two iterations by the plan that has come, the mean of the twelve that follow, in such iterations. Prints
a table.

    .venv/bin/python bench/switching.py                      # 5 minutes; needs root, or user namespaces
"""

import argparse
import os
import statistics
import sys
import time

import torch

import gradweave
from gradweave import core, ranks
from gradweave.lab import fashion_mnist, hosts, training
from training_tables import markdown

WORKERS, RATE_MBIT, AFTER, STEADY = 2, 100, 2, 12
FROM = "ddp"


def change(model, job, plan):
    """Seconds: (beyond iterations by the plan, of one such iteration). Collective."""
    begin = time.perf_counter()
    model.gradweave.install(plan)
    training.train(job, AFTER)
    took = time.perf_counter() - begin
    steady = statistics.fmean(training.train(job, STEADY)[0])
    return took - AFTER * steady, steady


def cell(costs):
    """The median, with the least and the most, in iterations."""
    shares = [beyond / steady for beyond, steady in costs]
    return f"{statistics.median(shares):.2f} [{min(shares):.2f} to {max(shares):.2f}]"


def rank_main(options):
    torch.set_num_threads(1)
    with ranks.joined("switching"):
        hosts.shape_interface(hosts.interface_of(0), RATE_MBIT * 1e6)
        job = training.recipe_of("small", learning_rate=0.001).make(fashion_mnist.load("train"), ranks.rank(), WORKERS)
        model, job.optimizer = gradweave.wrap(job.model, job.optimizer, FROM, follow=False, report=False)
        training.train(job, 40)
        plans = {scheme: core.make_plan(model.gradweave.workload, model.gradweave.cluster, scheme)
                 for scheme in (each["name"] for each in core.schemes()) if scheme != "auto"}
        rows = []
        for number, (scheme, plan) in enumerate(plans.items()):
            there, back = [], []
            for _ in range(options.changes):
                there.append(change(model, job, plan))
                back.append(change(model, job, plans[FROM]))
            rows.append([scheme, f"{1e3 * statistics.median(steady for _, steady in there):.1f}", cell(there), cell(back)])
            if ranks.is_first():
                print(f"{number + 1} of {len(plans)}: {' '.join(rows[-1])}", file=sys.stderr)
        gradweave.finish(model)
        model.gradweave.close()
        if ranks.is_first():
            print(markdown(["scheme", "ms an iteration", f"from {FROM}, iterations", f"to {FROM}, iterations"], rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=10, help="in each direction")
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options)
        return 0
    return hosts.run_on_hosts(WORKERS)


if __name__ == "__main__":
    sys.exit(main())
