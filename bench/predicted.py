"""What a job predicts of every scheme's plan, beside what an iteration by it takes.

Two ranks train one job over a shaped link between hosts (network namespaces). In each round `wrap()` profiles and probes
anew; every scheme is planned and simulated by what it has found, as the job itself would, and the plans take turns in that
training. Results are docs/results/predicted.json; what is measured again replaces what is there.

    .venv/bin/python bench/predicted.py                       # half an hour; needs root, or user namespaces
    .venv/bin/python bench/predicted.py --jobs gpt --coverage 2 --rounds 1
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
from gradweave.lab import hosts, jobs, slow_link, training
from training_tables import markdown, replace_section

RESULTS = Path(__file__).parent.parent / "docs/results/predicted.json"
PAGE = RESULTS.with_name("following.md")
WORKERS, SETTLES, TURNS = 2, 4, 2
# What is planned besides every scheme as it is.
MORE = {"ddp compressor=int8": ("ddp", {"compressor": "int8"}),
        "delayed_averaging compressor=int4": ("delayed_averaging", {"compressor": "int4"})}


def make_job(kind):
    return training.recipe_of(kind).make(jobs.KINDS[kind].load("train"), ranks.rank(), WORKERS)


def shaped(kind, coverage):
    """Milliseconds of an iteration without communication, once the link has that coverage rate. Collective."""
    job = make_job(kind)
    training.train(job, SETTLES)
    seconds, _ = training.train(job, 10)
    alone = ranks.agreed(statistics.median(seconds))
    rate = slow_link.bits_per_second_at(coverage, training.trained_bytes(job.model), alone, WORKERS)
    hosts.shape_interface(hosts.interface_of(0), rate)
    return 1e3 * alone


def plans_of(session):
    """{method: plan} of all schemes."""
    methods = {each["name"]: (each["name"], {}) for each in core.schemes() if each["name"] != "auto"} | MORE
    return {method: core.make_plan(session.workload, session.cluster, scheme, options)
            for method, (scheme, options) in methods.items()}


def measured(kind, iterations):
    """(what the job has found but for layers, [{"method", "predicted_ms", "ms": of each turn}, ...]). Collective."""
    job = make_job(kind)
    model, job.optimizer = gradweave.wrap(job.model, job.optimizer, options={"allow": "exact+local+compressed"}, follow=False,
                                          report=False)
    session = model.gradweave
    while session.overheads is None:
        training.train(job, 1)
    found = {"cluster": session.cluster.to_dict(), "overheads": session.overheads}
    rows = {}
    for method, plan in plans_of(session).items():
        predicted = core.simulate(plan, session.workload, session.cluster, **session.overheads)["iteration_us"] / 1e3
        rows[method] = plan, {"method": method, "predicted_ms": predicted, "ms": []}
    for _ in range(TURNS):
        for plan, row in rows.values():
            session.install(plan)
            training.train(job, SETTLES)
            torch.distributed.barrier()
            begin = time.perf_counter()
            training.train(job, iterations)
            row["ms"].append(1e3 * ranks.agreed((time.perf_counter() - begin) / iterations))
    gradweave.finish(model)
    session.close()
    return found, [row for _, row in rows.values()]


def rank_main(options):
    torch.set_num_threads(1)
    with ranks.joined("predicted"):
        results = []
        for kind in options.jobs:
            for coverage in options.coverage:
                for _ in range(options.rounds):
                    alone_ms = shaped(kind, coverage)
                    found, rows = measured(kind, options.iterations)
                    results.append({"job": kind, "coverage": coverage, "alone_ms": alone_ms, **found, "rows": rows})
                    if ranks.is_first():
                        print(f"{kind} at {coverage:g}: {summary(results[-1:])}", file=sys.stderr, flush=True)
        first = ranks.is_first()
    if first:
        known = json.loads(options.results.read_text()) if options.results.exists() else []
        anew = {setting(each) for each in results}
        kept = [each for each in known if setting(each) not in anew]
        options.results.write_text(json.dumps(kept + results, indent=1) + "\n")
        if options.results == RESULTS:
            for section in sections():
                replace_section(*section)


def setting(result):
    return result["job"], result["coverage"]


def errors_of(results):
    """{(job, coverage rate, method): relative errors, one of each round}."""
    errors = {}
    for result in results:
        for row in result["rows"]:
            errors.setdefault((*setting(result), row["method"]), []).append(
                row["predicted_ms"] / statistics.median(row["ms"]) - 1)
    return errors


def summary(results):
    errors = [100 * error for each in errors_of(results).values() for error in each]
    within = sum(abs(error) <= 10 for error in errors)
    return (f"{statistics.mean(errors):+.1f} % in the mean, {statistics.mean(map(abs, errors)):.1f} % in size, "
            f"{max(errors, key=abs):+.0f} % at worst; {within} of {len(errors)} predictions are within 10 %")


def table(results):
    """A row for each method: error in per cent, by setting, each round's."""
    errors = errors_of(results)
    settings = list(dict.fromkeys(map(setting, results)))
    methods = dict.fromkeys(method for _, _, method in errors)
    rows = [[method] + [" ".join(f"{100 * error:+.0f}" for error in errors[*where, method]) for where in settings]
            for method in methods]
    found = {where: [each["overheads"]["contention"] for each in results if setting(each) == where] for where in settings}
    rows.append(["contention"] + [" ".join(f"{value:.2f}" for value in found[where]) for where in settings])
    return markdown(["scheme"] + [f"{job} at {coverage:g}" for job, coverage in settings], rows)


def sections():
    results = json.loads(RESULTS.read_text())
    return [(PAGE, "predicted", f"{table(results)}\n\nIn all: {summary(results)}.")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", default=["gpt", "resnet18"])
    parser.add_argument("--coverage", nargs="+", type=float, default=[1, 2],
                        help="how many times as long as computing an iteration it takes to communicate the model")
    parser.add_argument("--rounds", type=int, default=2, help="in each of which the job measures anew")
    parser.add_argument("--iterations", type=int, default=8, help="that are timed in a turn")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options)
        return 0
    return hosts.run_on_hosts(WORKERS, cpus=range(WORKERS))


if __name__ == "__main__":
    sys.exit(main())
