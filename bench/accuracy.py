"""Accuracy of real training by two or more workers: DistributedDataParallel against schemes that delay or average.

Every run trains the small network on Fashion-MNIST for some epochs on real processes. A plan is made for a link at
the coverage rate asked for and then runs on an unshaped one: when results are applied is the plan's decision, not the
link's, so accuracy is that of the slow link. Results are lines of JSON, one for each run; runs whose line exists are
skipped, so that an interrupted benchmark continues where it stopped.

    .venv/bin/python bench/accuracy.py            # all runs: about two hours on two processors
    .venv/bin/python bench/accuracy.py --only '4 workers/adamw/*' --seeds 6
"""

import argparse
import fnmatch
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import distributed

import gradweave
from gradweave import core, ranks
from gradweave.lab import fashion_mnist, hosts, training

RESULTS = Path(__file__).parent.parent / "docs/results/accuracy.jsonl"
GLOBAL_BATCH = 128
LEARNING_RATE = {"sgd": 0.05, "adamw": 0.001}
# Milliseconds of the small network's layers at batch 64: only their proportions matter, and a fixed workload makes
# the plans, and so the results, the same on every machine.
LAYERS_MS = {"conv1": (1.8, 1.6), "conv2": (1.9, 3.0), "hidden": (0.3, 0.6), "classes": (0.1, 0.1)}
# Scheme, its options, and whose second moment Adam divides by, where ranks step on their own.
WAYS = {
    "ddp": None,
    "delayed_averaging": ("delayed_averaging", {}, "whole_batch"),
    "delayed_averaging moments=local": ("delayed_averaging", {}, "local"),
    "deft merge=sum": ("deft", {"merge": "sum"}, "whole_batch"),
    "deft merge=mean": ("deft", {"merge": "mean"}, "whole_batch"),
    "deft correction=local": ("deft", {"correction": "local"}, "whole_batch"),
    "deft correction=local moments=local": ("deft", {"correction": "local"}, "local"),
    "local_sgd": ("local_sgd", {"period": 2}, "whole_batch"),
    "local_sgd moments=local": ("local_sgd", {"period": 2}, "local"),
}
AVERAGES = ("ddp", "delayed_averaging", "delayed_averaging moments=local")  # compared with more than two workers


@dataclass(frozen=True)
class Run:
    """One training run; its fields identify it in the results."""

    way: str
    optimizer: str
    workers: int
    seed: int
    epochs: int = 3
    coverage: float = 2.0

    @property
    def name(self):
        return f"{self.workers} workers/{self.optimizer}/{self.way}/seed {self.seed}"


def all_runs(seeds):
    """Two workers with every seed for every way, then four for those that are compared there, and eight with AdamW alone."""
    compared = [(2, optimizer, way) for optimizer in LEARNING_RATE for way in WAYS]
    compared += [(4, optimizer, way) for optimizer in LEARNING_RATE for way in AVERAGES]
    compared += [(8, "adamw", way) for way in AVERAGES]
    return [Run(way, optimizer, workers, seed) for seed in range(seeds) for workers, optimizer, way in compared
            if optimizer == "adamw" or not way.endswith("moments=local")]  # moments are Adam's


def done_runs(path):
    """{Run: result} of the lines in `path`."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {Run(**line["run"]): line for line in lines}


def plan_for(run, model):
    """The plan that the run's scheme makes for `model` on a link at the run's coverage rate."""
    scheme, options, _ = WAYS[run.way]
    parameters = dict(model.named_parameters())
    layers = [{"name": name, "forward_us": 1e3 * forward, "backward_us": 1e3 * backward,
               "tensors": [{"name": f"{name}.{kind}", "numel": parameters[f"{name}.{kind}"].numel(), "dtype": "float32"}
                           for kind in ("weight", "bias")]}
              for name, (forward, backward) in LAYERS_MS.items()]
    compute_us = sum(layer["forward_us"] + layer["backward_us"] for layer in layers)
    size = sum(4 * parameter.numel() for parameter in parameters.values())
    link = {"name": "link", "startup_us": 50, "us_per_byte": (run.coverage * compute_us - 50) / size, "concurrency": 1}
    workload = {"version": 1, "name": "small network", "layers": layers}
    return core.make_plan(workload, {"version": 1, "workers": run.workers, "links": [link]}, scheme, options)


def train(run, train_set, test_set):
    """The result of one run, on every rank. Collective."""
    rank = ranks.rank()
    recipe = training.Recipe(fashion_mnist.small_network, run.optimizer, LEARNING_RATE[run.optimizer], 0.9,
                             GLOBAL_BATCH // run.workers, run.seed)
    job = recipe.make(*train_set, rank, run.workers)
    network, plan = job.model, None
    if WAYS[run.way] is None:
        job.model = torch.nn.parallel.DistributedDataParallel(network)
    else:
        plan = plan_for(run, network)
        job.model, job.optimizer = gradweave.wrap(network, job.optimizer, plan=plan, moments=WAYS[run.way][2])
    iterations = len(train_set[0]) // GLOBAL_BATCH
    begin, accuracies, losses, spread = time.perf_counter(), [], [], 0.0
    for _ in range(run.epochs):
        _, loss = training.train(job, iterations)
        if plan:
            spread = spread_of(network)
            gradweave.finish(job.model)
        losses.append(ranks.agreed(loss))
        accuracies.append(training.accuracy(network, *test_set, rank, run.workers))
    result = {"run": asdict(run), "accuracy": accuracies, "loss": losses, "spread": spread,
              "seconds": time.perf_counter() - begin, "torch": torch.__version__}
    if plan:
        result |= {"options": plan.get("options", {}), "period": len(plan["period"])}
    return result


def spread_of(network):
    """How far the workers are apart: the norm of (own - mean) parameters over the norm of the mean, largest rank."""
    own = torch.cat([parameter.detach().flatten() for parameter in network.parameters()]).double()
    mean = own.clone()
    distributed.all_reduce(mean)
    mean /= distributed.get_world_size()
    largest = torch.stack([(own - mean).norm() / mean.norm()])
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return largest.item()


def work(options, wanted):
    """In a rank: train the wanted runs, rank 0 writing each result as it comes."""
    torch.set_num_threads(1)
    train_set, test_set = fashion_mnist.load("train"), fashion_mnist.load("test")
    with ranks.joined("accuracy"):
        for run in wanted:
            result = train(run, train_set, test_set)
            if not ranks.is_first():
                continue
            with options.results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            accuracies = " ".join(f"{value:.2f}" for value in result["accuracy"])
            print(f"{run.name}: {accuracies}%  ({result['seconds']:.0f} s)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", default="*", help="pattern of OPTIMIZER/WAY or of the whole name, e.g. 'sgd/deft*'")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--list", action="store_true", help="list the runs and whether they are done")
    options = parser.parse_args()
    done = done_runs(options.results)
    chosen = [run for run in all_runs(options.seeds) if fnmatch.fnmatch(run.name, f"*{options.only}*")]
    if options.list:
        for run in chosen:
            print(f"{'done' if run in done else '-':5} {run.name}")
        return 0
    missing = [run for run in chosen if run not in done]
    if "RANK" in os.environ:
        work(options, [run for run in missing if run.workers == int(os.environ["WORLD_SIZE"])])
        return 0
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for workers in sorted({run.workers for run in missing}):
        code = hosts.run_ranks([[]] * workers, [sys.executable, *sys.argv], {"GLOO_SOCKET_IFNAME": "lo"})
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
