"""Accuracy of real training by two or more workers: DistributedDataParallel against whatever is not exact, ours and others'.

Every run trains an example job on real processes: the small network on Fashion-MNIST for three epochs, the others as
long as ITERATIONS and SCHEDULED say. A plan is made for a link at the coverage rate asked for and then runs on an
unshaped one: when results are applied is the plan's decision, not the link's, so accuracy is that of the slow link.
Results are lines of JSON, one for each run; runs whose line exists are skipped, so that an interrupted benchmark
continues where it stopped. Jobs on text read PyTorch's sources: rows of another text don't compare, so a run whose table has
such rows is refused.

    .venv/bin/python bench/accuracy.py            # all runs: hours; --list says how many
    .venv/bin/python bench/accuracy.py --coverage 64 --seeds 1
    .venv/bin/python bench/accuracy.py --only '4 workers/adamw/*' --seeds 6
"""

import argparse
import dataclasses
import fnmatch
import functools
import hashlib
import itertools
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import distributed

import gradweave
import peers
import rows
import runs
from gradweave import core, ranks
from gradweave.lab import jobs, methods, text, training

RESULTS = Path(__file__).parent.parent / "docs/results/accuracy.jsonl"
# The times of the jobs' layers: only their proportions matter, and fixed workloads make the plans, and so the results, the
# same on every machine.
WORKLOADS = Path(__file__).parent / "workloads"
LARGE = "large gpt"  # ten times as many parameters as the GPT of the example jobs
KINDS = jobs.KINDS | {LARGE: dataclasses.replace(jobs.KINDS["gpt"], name=LARGE, network=lambda: text.GPT(416, heads=8),
                                                 learning_rates=(("adamw", 0.0005),))}
GLOBAL_BATCH = {"small": 128, "vit": 128, "resnet18": 64, "lora": 32, "gpt": 32, LARGE: 32}
ITERATIONS = {"small": 60000 // 128, "vit": 60000 // 128, "resnet18": 300, "lora": 300, "gpt": 250, LARGE: 250}  # of an epoch
# {job: (optimizer, epochs)} of those whose learning rate rises for RISE of the run and then falls to zero, as a cosine.
SCHEDULED = {"vit": ("adamw", 2), "resnet18": ("sgd", 1), "lora": ("adamw", 1), "gpt": ("adamw", 3), LARGE: ("adamw", 2)}
FALLING = "cosine"
HIGH = {"gpt": "cosine from twice the rate, clipped", LARGE: "cosine from twice the rate"}
PEAKS = {"constant": 1.0, FALLING: 1.0, HIGH["gpt"]: 2.0, HIGH[LARGE]: 2.0}  # of the job's own learning rate, by schedule
CLIPPED = {HIGH["gpt"]: 1.0}  # by schedule: to which norm gradients are clipped, as is usual for GPTs
RISE = 0.05
OPTIMIZERS = ("sgd", "adamw")
COVERAGE_RATES = (2, 64)
CURVE = 4  # points of an accuracy curve in an epoch
CURVE_IMAGES = {"small": 5000, "vit": 5000, "resnet18": 1000}  # of jobs on pictures
PLANNED = rows.planned([*rows.MORE, *rows.ACCURACY_ONLY])
SYNCHRONOUS = "ddp"  # DistributedDataParallel; stands for every exact scheme, which gives the same bits with two workers


@dataclass(frozen=True)
class Run:
    """One training run; its fields identify it in the results."""

    method: str
    optimizer: str
    workers: int
    seed: int
    epochs: int = 3
    coverage: float = 2.0
    job: str = "small"
    schedule: str = "constant"  # of the learning rate: one of PEAKS

    @property
    def name(self):
        job = self.job if self.schedule == "constant" else f"{self.job} {self.schedule}"
        return f"{job}/{self.workers} workers/{self.optimizer}/{self.method}/seed {self.seed}"


def learning_rate(schedule, part):
    """What the job's learning rate is multiplied by in the iteration that ends `part` of the run."""
    if schedule == "constant":
        return 1.0
    return PEAKS[schedule] * (part / RISE if part < RISE else (1 + math.cos(math.pi * (part - RISE) / (1 - RISE))) / 2)


def all_runs(seeds, coverage_rates=COVERAGE_RATES):
    """Two workers with every seed for every method that is not exact, at each coverage rate if it depends on that; then four
    workers for averages in 4 bits at each of them, and for the other averages at coverage rate 2; there eight, with AdamW
    alone, too. With Muon, and for the GPT, each scheme that is not exact, gradients in 8 bits, and averages in few bits at
    every rate. For the jobs of SCHEDULED what is recommended at coverage rates 2, 16 and 64, and the peers; with four and
    eight workers what is recommended alone. For the largest, one seed of what is not recommended for it. Where gradients are
    clipped, with two and four workers, each worker's own moments too."""
    int4, auto = "delayed_averaging compressor=int4", "delayed_averaging compressor=auto"
    averages = (SYNCHRONOUS, "delayed_averaging", int4, "delayed_averaging moments=local")
    elsewhere_only = (*rows.ON_TIME, *rows.MORE_ON_TIME, rows.AUTO, *rows.COMPRESSED, *rows.LOCAL_MOMENTS)
    inexact = [name for name in [*PLANNED, *rows.peers()] if not rows.is_exact(name) and name not in elsewhere_only]
    compared = [(2, optimizer, method, rate) for rate in coverage_rates for optimizer in OPTIMIZERS for method in inexact
                if rows.depends_on_rate(method)]
    compared += [(2, optimizer, method, 2.0) for optimizer in OPTIMIZERS for method in [SYNCHRONOUS, *inexact]
                 if not rows.depends_on_rate(method)]
    compared += [(4, optimizer, method, 2.0) for optimizer in OPTIMIZERS for method in averages]
    compared += [(4, optimizer, int4, rate) for rate in coverage_rates if rate != 2 for optimizer in OPTIMIZERS]
    compared += [(8, "adamw", method, 2.0) for method in averages]
    schemes = [SYNCHRONOUS, *(row["name"] for row in core.schemes() if not rows.is_exact(row["name"])),
               "deft correction=local", "local_sgd period=2"]
    more = [*((method, 2.0) for method in (*schemes, "ddp compressor=int8")),
            *((method, rate) for method in (int4, auto) for rate in coverage_rates)]
    rates = (2.0, 16.0, 64.0)
    elsewhere = [(SYNCHRONOUS, 2.0), ("delayed_averaging", 2.0), *rows.ON_TIME.items(),
                 *((method, rate) for method in (int4, auto, rows.AUTO) for rate in rates), ("deft correction=local", 2.0),
                 ("local_sgd", 2.0), ("DDP (fp16 hook)", 2.0), ("DDP (PowerSGD hook)", 2.0), ("post-local SGD", 64.0),
                 ("Streaming DiLoCo", 2.0), ("Streaming DiLoCo", 64.0),
                 *((name, 64.0) for name, peer in rows.peers().items() if not peer.timed)]
    of_many = [(SYNCHRONOUS, 2.0), (int4, 2.0), (auto, 64.0), *rows.ON_TIME.items(), ("ddp compressor=int8", 2.0),
               ("ddp compressor=int4", 2.0)]

    def scheduled(job, schedule, workers, seed):
        if schedule in CLIPPED:
            rounded = ((name, 2.0) for name in ("ddp compressor=int8", "ddp compressor=int4", "dear compressor=int8"))
            return [*(of_many if workers > 2 else (*elsewhere, *rounded)), *rows.LOCAL_MOMENTS.items()]
        if workers > 2 or schedule != FALLING:
            return of_many
        if seed and job == LARGE:
            return [(SYNCHRONOUS, 2.0), *rows.ON_TIME.items()]
        compressed = ("ddp compressor=int8", "ddp compressor=power_sgd", *rows.COMPRESSED)
        return [*elsewhere, *((method, 2.0) for method in compressed), *(rows.MORE_ON_TIME.items() if job in HIGH else ())]

    return [Run(method, optimizer, workers, seed, coverage=rate) for seed in range(seeds)
            for workers, optimizer, method, rate in compared
            if optimizer == "adamw" or "moments" not in method] + [  # moments are Adam's
        Run(method, optimizer, 2, seed, coverage=rate, job=job) for seed in range(seeds)
        for job, optimizer in (("small", "muon"), ("gpt", "adamw"), ("gpt", "muon")) for method, rate in more] + [
        Run(method, optimizer, workers, seed, epochs, rate, job, schedule) for job, (optimizer, epochs) in SCHEDULED.items()
        for schedule in (FALLING, *filter(None, [HIGH.get(job)])) for seed in range(seeds)
        for workers in ((2,) if job == LARGE else (2, 4) if schedule in CLIPPED else (2, 4, 8))
        for method, rate in scheduled(job, schedule, workers, seed)
        if rate in coverage_rates or not rows.depends_on_rate(method)]


def done_runs(path):
    """{Run: result} of the lines in `path`."""
    return runs.done(path, Run)


def plan_for(run):
    """The plan that the run's scheme makes for its job on a link at the run's coverage rate."""
    method = methods.parse(run.method)
    setting = setting_of(run.job, run.coverage, run.workers)
    if method.scheme == "auto":  # as in a job whose optimizer has momentum, and which may clip
        refused = ["makes_momentum", *(["steps_in_backward"] if run.schedule in CLIPPED else [])]
        return next(each["plan"] for each in core.ranked_plans(*setting, method.plan_options)
                    if not any(each["demands"][name] for name in refused))
    return core.make_plan(*setting, method.scheme, method.plan_options)


def setting_of(job, coverage, workers):
    """(the job's workload, a cluster of so many workers whose link has that coverage rate)."""
    workload = json.loads((WORKLOADS / f"{job.replace(' ', '-')}.json").read_text())
    compute_us = sum(layer["forward_us"] + layer["backward_us"] for layer in workload["layers"])
    size = sum(4 * tensor["numel"] for layer in workload["layers"] for tensor in layer["tensors"])
    link = {"name": "link", "startup_us": 50, "us_per_byte": (coverage * compute_us - 50) / size, "concurrency": 1}
    return workload, {"version": 1, "workers": workers, "links": [link]}


def train(run, train_set, test_set):
    """The result of one run, on every rank. Collective."""
    rank = ranks.rank()
    kind = KINDS[run.job]
    recipe = training.recipe_of(kind, run.optimizer, batch_size=GLOBAL_BATCH[run.job] // run.workers, seed=run.seed)
    job = recipe.make(train_set, rank, run.workers)
    network, plan, finish = job.model, None, None
    groups = [group for optimizer in job.optimizers() for group in optimizer.param_groups]
    rates, numbers = [group["lr"] for group in groups], itertools.count(1)
    if run.method == SYNCHRONOUS:
        job.model = torch.nn.parallel.DistributedDataParallel(network)
    elif run.method in rows.peers():
        peer = rows.peers()[run.method]
        finish = peer.train(job, peer.steps(run.coverage, run.job))
    else:
        plan = plan_for(run)
        job.model, job.optimizer = gradweave.wrap(network, job.optimizer, plan=plan, **methods.parse(run.method).wrap_options)
        finish = functools.partial(gradweave.finish, job.model)
    if run.schedule in CLIPPED:
        clip = functools.partial(gradweave.clip_grad_norm_, job.model) if plan else functools.partial(
            torch.nn.utils.clip_grad_norm_, training.trained(network))
        job.before_step = functools.partial(clip, CLIPPED[run.schedule])

    evaluate, iterations = recipe.kind.evaluate, ITERATIONS[run.job]

    def set_rates():
        factor = learning_rate(run.schedule, next(numbers) / (run.epochs * iterations))
        for group, rate in zip(groups, rates):
            group["lr"] = rate * factor

    set_rates()
    part = [tensor[:CURVE_IMAGES[run.job]] for tensor in test_set] if run.job in CURVE_IMAGES else test_set
    begin, accuracies, test_losses, losses, curve, spread = time.perf_counter(), [], [], [], [], 0.0
    for epoch in range(run.epochs):
        for quarter in range(CURVE):
            count = iterations * (quarter + 1) // CURVE - iterations * quarter // CURVE
            _, loss = training.train(job, count, set_rates)
            losses.append(ranks.agreed(loss))
            done = epoch * iterations + iterations * (quarter + 1) // CURVE
            curve.append((done, evaluate(peers.averaged_copy(network), part, rank, run.workers)[0]))
        if finish:
            spread = spread_of(network)
            finish()
        accuracy, loss = evaluate(network, test_set, rank, run.workers)
        accuracies.append(accuracy)
        test_losses.append(loss)
    result = {"run": asdict(run), "accuracy": accuracies, "test_loss": test_losses, "curve": curve,
              "loss": losses[CURVE - 1::CURVE], "spread": spread,
              "seconds": time.perf_counter() - begin, "torch": torch.__version__}
    if kind.batches is text.batches:
        result["text"] = digest(train_set)
    if plan:
        result |= {"options": plan.get("options", {}), "period": len(plan["period"])}
        if chosen := methods.chosen_by(plan):
            result["chosen"] = chosen.name
        job.model.gradweave.close()
    return result


def digest(data):
    """Of a text, 16 hexadecimal digits."""
    return hashlib.sha256(bytes(data.tolist())).hexdigest()[:16]


def of_other_texts(missing, done):
    """The missing runs whose table has rows of another text than this torch's."""
    found = []
    for job, schedule in sorted({(run.job, run.schedule) for run in missing if KINDS[run.job].batches is text.batches}):
        texts = {result.get("text") for run, result in done.items() if (run.job, run.schedule) == (job, schedule)}
        if texts - {digest(KINDS[job].load("train"))}:
            found += [run for run in missing if (run.job, run.schedule) == (job, schedule)]
    return found


def spread_of(network):
    """How far the workers are apart: the norm of (own - mean) parameters over the norm of the mean, largest rank."""
    own = torch.cat([parameter.detach().flatten() for parameter in training.trained(network)]).double()
    mean = own.clone()
    distributed.all_reduce(mean)
    mean /= distributed.get_world_size()
    return ranks.largest([((own - mean).norm() / mean.norm()).item()])[0]


def work(options, wanted):
    """In a rank: train the wanted runs, rank 0 writing each result as it comes."""
    torch.set_num_threads(1)
    data = {job: [KINDS[job].load(split) for split in ("train", "test")] for job in {run.job for run in wanted}}
    with ranks.joined("accuracy"):
        for run in wanted:
            try:
                result = train(run, *data[run.job])
            except (ValueError, RuntimeError) as error:  # alike on all ranks
                if isinstance(error, gradweave.RuntimeFailure):
                    raise
                if ranks.is_first():
                    print(f"{run.name}: left out, {str(error).splitlines()[0]}", flush=True)
                continue
            if not ranks.is_first():
                continue
            runs.add(options.results, result)
            accuracies = " ".join(f"{value:.2f}" for value in result["accuracy"])
            print(f"{run.name}: {accuracies}%  ({result['seconds']:.0f} s)", flush=True)


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=["*"],
                        help="patterns of OPTIMIZER/METHOD or the whole name, e.g. 'sgd/deft*', 'gpt/*'")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--coverage", nargs="*", type=float, default=list(COVERAGE_RATES))
    parser.add_argument("--list", action="store_true", help="list the runs and whether they are done")
    return parser.parse_args(arguments)


def chosen_runs(options):
    return [run for run in all_runs(options.seeds, options.coverage)
            if any(fnmatch.fnmatch(run.name, f"*{pattern}*") for pattern in options.only)]


def main():
    options = parsed(sys.argv[1:])
    done = done_runs(options.results)
    chosen = chosen_runs(options)
    if options.list:
        for run in chosen:
            print(f"{'done' if run in done else '-':5} {run.name}")
        return 0
    missing = [run for run in chosen if run not in done]
    if others := of_other_texts(missing, done):
        print(f"{others[0].name}: its table has rows of another text than this torch's sources; remove them from "
              f"{options.results} to measure the table anew, or write another file by --results", file=sys.stderr)
        return 2
    return runs.train(missing, options.results, lambda wanted: work(options, wanted))


if __name__ == "__main__":
    sys.exit(main())
