"""The Preserver on real training: what `auto` takes where delays are allowed, and the accuracy of that.

Workers train the small network on Fashion-MNIST for two epochs over the model of a slow link: by DistributedDataParallel, by
a plan that changes training and is asked for by name, which is run whatever the Preserver says, and by `auto`, which asks it.
`auto` is allowed only plans that change training, so that it takes one if the Preserver lets it, and none if not.
Fine-tuning begins with a network that was trained for an epoch. Results are lines of JSON, one for each run; runs whose line
exists are skipped.

    .venv/bin/python bench/preserving.py                     # an hour
    .venv/bin/python bench/preserving.py --workers 2 --seeds 1
"""

import argparse
import functools
import logging
import os
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

import gradweave
import runs
from gradweave import core, ranks
from gradweave.lab import fashion_mnist, training
from gradweave.lab.jobs import KINDS
from training_tables import markdown, replace_section

DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE = DOCS / "results/preserving.jsonl", DOCS / "preserver.md"
GLOBAL_BATCH, EPOCHS = 128, 2
LINK = 100.0, 0.03  # microseconds, and microseconds per byte; exact plans hide that too
DDP = "DistributedDataParallel"
NOTHING = 0.3  # points that may be lost


@dataclass(frozen=True)
class Case:
    learning_rate: float
    momentum: float
    by_name: str
    allow: str
    warm_up: int = 12
    fine_tuning: bool = False
    apart: bool = False  # even ranks have the classes 0 to 4, odd ones 5 to 9


CASES = {
    "SGD 0.05, momentum 0.9": Case(0.05, 0.9, "deft", "delayed"),
    "fine-tuning, SGD 0.005, no momentum": Case(0.005, 0.0, "deft", "delayed", warm_up=100, fine_tuning=True),
    "SGD 0.05, momentum 0.9, averages": Case(0.05, 0.9, "delayed_averaging", "corrected"),
    "SGD 0.05, momentum 0.9, averages, classes apart": Case(0.05, 0.9, "delayed_averaging", "corrected", apart=True),
}


@dataclass(frozen=True)
class Run:
    """Its fields identify it in the results."""

    case: str
    method: str
    workers: int
    seed: int


def all_runs(workers, seeds):
    return [Run(name, method, count, seed) for seed in range(seeds) for count in workers
            for name, case in CASES.items() for method in (DDP, case.by_name, "auto")]


def epoch_of(images):
    """Iterations."""
    return len(images) // GLOBAL_BATCH


@functools.cache
def trained(seed):
    """The small network's state after an epoch, computed by each rank alone."""
    images, labels = fashion_mnist.load("train")
    job = training.Recipe(KINDS["small"], batch_size=GLOBAL_BATCH, seed=seed).make((images, labels))
    training.train(job, epoch_of(images))
    return job.model.state_dict()


def job_of(case, run, train_set):
    recipe = training.Recipe(KINDS["small"], "sgd", case.learning_rate, case.momentum, GLOBAL_BATCH // run.workers, run.seed)
    rank, share = ranks.rank(), run.workers
    if case.apart:
        images, labels = train_set
        own = labels // 5 == rank % 2
        train_set, rank, share = (images[own], labels[own]), rank // 2, run.workers // 2
    job = recipe.make(train_set, rank, share)
    if case.fine_tuning:
        job.model.load_state_dict(trained(run.seed))
    return job


def train(run, train_set, test_set):
    """The result of one run, on every rank. Collective."""
    case, told = CASES[run.case], []
    job = job_of(case, run, train_set)
    network, plan, objection = job.model, None, ""
    if run.method == DDP:
        job.model = torch.nn.parallel.DistributedDataParallel(network)
    else:
        handler = logging.Handler()
        handler.emit = lambda record: told.append(record.getMessage())
        logging.getLogger("gradweave").addHandler(handler)
        job.model, job.optimizer = gradweave.wrap(
            network, job.optimizer, run.method, links=gradweave.EmulatedLink(*LINK), warm_up=case.warm_up, follow=False,
            options={"allow": case.allow} if run.method == "auto" else None)
    training.train(job, EPOCHS * epoch_of(train_set[0]))
    if run.method != DDP:
        plan = core.chosen(job.model.gradweave.plan)["scheme"]
        gradweave.finish(job.model)
        job.model.gradweave.close()
        logging.getLogger("gradweave").removeHandler(handler)
        objection = " ".join(line for line in told if "was not chosen" in line or "objects" in line or "makes only" in line)
    accuracy, loss = fashion_mnist.evaluate(network, test_set, ranks.rank(), run.workers)
    return {"run": asdict(run), "plan": plan, "accuracy": accuracy, "loss": loss, "objection": objection}


def rank_main(options, wanted):
    torch.set_num_threads(1)
    train_set, test_set = fashion_mnist.load("train"), fashion_mnist.load("test")
    with ranks.joined("preserving"):
        for number, run in enumerate(wanted):
            result = train(run, train_set, test_set)
            if not ranks.is_first():
                continue
            runs.add(options.results, result)
            print(f"{number + 1} of {len(wanted)}: {run.workers} workers, {run.case}, {run.method} ({result['plan']}), "
                  f"seed {run.seed}: {result['accuracy']:.2f} %", file=sys.stderr)


def table(found):
    """One row for each case, number of workers and method."""
    rows = {}
    for run, result in found.items():
        rows.setdefault((run.workers, run.case, run.method), []).append(result)
    lines = []
    for (workers, case, method), results in sorted(rows.items(), key=lambda row: (list(CASES).index(row[0][1]), row[0][0])):
        results = sorted(results, key=lambda each: each["run"]["seed"])
        plans = ", ".join(dict.fromkeys(each["plan"] for each in results if each["plan"]))
        objections = sum(bool(each["objection"]) for each in results)
        lines.append([case, str(workers), method, plans, f"{objections} of {len(results)}" if plans else "",
                      f"{statistics.fmean(each['accuracy'] for each in results):.2f}",
                      " ".join(f"{each['accuracy']:.2f}" for each in results)])
    return markdown(["job", "workers", "method", "plan", "objections", "accuracy, %", "seeds"], lines)


def in_words(found):
    """What was lost by the plans that were objected to and run all the same, and by those that were let through; misses, which
    lost more than NOTHING in the mean of the seeds, and false alarms, which did not in their run."""
    by_name = {run: result["accuracy"] - found[replace(run, method=DDP)]["accuracy"] for run, result in found.items()
               if run.method not in (DDP, "auto")}
    lost, delayed, averaged, accepted = [], [], [], {}
    for run, difference in by_name.items():
        if found[run]["objection"]:
            lost.append(difference)
            continue
        (delayed if run.method == "deft" else averaged).append(difference)
        accepted.setdefault((run.case, run.workers), []).append(difference)
    misses = sum(statistics.fmean(differences) < -NOTHING for differences in accepted.values())
    alarms = sum(difference >= -NOTHING for difference in lost)
    return (f"**Misses: {misses} of {len(accepted)}**: rows whose accepted plans lost more than {NOTHING} points in the mean "
            f"of the seeds. **False alarms: {alarms} of\n{len(lost)}**: refused runs that lost no more than that. Plans that "
            f"it refused lost up to {-min(lost):.0f} points when run all the same. Plans that\nit accepted are within "
            f"{max(map(abs, delayed)):.2f} points of DistributedDataParallel with delayed gradients, and between "
            f"{min(averaged):+.2f} and {max(averaged):+.2f} with averages.")


def sections():
    found = runs.done(RESULTS, Run)
    return [(PAGE, "preserving", table(found) + "\n\n" + in_words(found))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--workers", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    done = runs.done(options.results, Run)
    missing = [run for run in all_runs(options.workers, options.seeds) if run not in done]
    code = runs.train(missing, options.results, lambda wanted: rank_main(options, wanted))
    if code == 0 and "RANK" not in os.environ:
        print(table(runs.done(options.results, Run)))
        if options.results == RESULTS:
            for section in sections():
                replace_section(*section)
    return code


if __name__ == "__main__":
    sys.exit(main())
