"""Tuning by simulation beside tuning on the running job: the plans that they find, and how long they take to find them.

Two ranks train one job over a shaped link between hosts (network namespaces). For each scheme: the papers' default, which is
also where live tuning starts (`wrap(tune=)`), and the plan that the scheme makes by itself, by simulation, from the profile
and the probe of the warm-up. Of `auto` tuning starts at the latter and tries its best plans. Then all plans take turns in one
training, several times over: a ratio is one of neighbours in time. Everything is found anew in each round. Results are one
JSON file, docs/results/tuning.json; what is measured again replaces what is there.

    .venv/bin/python bench/tuning.py              # 5 minutes a scheme and round; needs root, or user namespaces
    .venv/bin/python bench/tuning.py --schemes auto --job gpt --coverage 0.5 1 2 --trials 4 --rounds 1
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
from gradweave.lab import hosts, methods, slow_link, training
from training_tables import replace_section

RESULTS = Path(__file__).parent.parent / "docs/results/tuning.json"
PAGE = RESULTS.with_name("following.md")
WORKERS, SETTLES = 2, 4
# What the papers start from: DeAR's 25 MB (section IV.B); ByteScheduler's defaults. And DeAR without any fusion.
STARTS = {"dear": {"buffer_bytes": 25_000_000}, "bytescheduler": {"tune": "none"}, "auto": {}}
MORE = {"dear": {"no fusion": {"buffer_bytes": 1}}}
START, SIMULATED = "start", "simulation"


def make_job(options):
    return training.recipe_of(options.job).make(_data(options.job), ranks.rank(), WORKERS)


def _data(kind):
    from gradweave.lab import jobs

    return jobs.KINDS[kind].load("train")


def search(options, scheme, trials):
    """Trains until the tuning has ended: {"plan", "workload", "cluster", "tuning"; "profile_s", "profiled": seconds and
    iterations until the start is in force; "tuned": iterations of the trials}."""
    job = make_job(options)
    wrapped = gradweave.wrap(job.model, job.optimizer, scheme, options=STARTS[scheme], tune=trials, report=False)
    job.optimizer, session, counts = wrapped[1], wrapped[0].gradweave, [0, 0]
    begin, switched = time.perf_counter(), None
    while not (session.tuning or {}).get("ended"):
        training.train(job, 1)
        counts[switched is not None] += 1
        if switched is None and session.cluster is not None:
            switched = time.perf_counter()
    found = {"plan": session.plan, "workload": session.workload, "cluster": session.cluster, "tuning": session.tuning,
             "overheads": session.overheads,
             "profile_s": switched - begin, "profiled": counts[0], "tuned": counts[1]}
    gradweave.finish(wrapped[0])
    session.close()
    return found


def duel(options, plans):
    """{method: mean milliseconds of an iteration in each turn}."""
    job = make_job(options)
    model, job.optimizer = gradweave.wrap(job.model, job.optimizer, plan=next(iter(plans.values())), report=False)
    times = {method: [] for method in plans}
    training.train(job, SETTLES)
    for _ in range(options.turns):
        for method, plan in plans.items():
            model.gradweave.install(plan)
            training.train(job, SETTLES)
            torch.distributed.barrier()
            begin = time.perf_counter()
            training.train(job, options.iterations)
            times[method].append(1e3 * ranks.agreed((time.perf_counter() - begin) / options.iterations))
    gradweave.finish(model)
    model.gradweave.close()
    return times


def compare(options, scheme, where):
    """{"scheme", "rows": [{"method", "options", "ms": of each turn, "found_s", "lost_s"}, ...], ...} and what `where` says of
    the link. found_s: from the first iteration, or the first trial's, until the plan is in force; lost_s: how much longer that
    took than as many iterations by the plan found."""
    searches = {trials: search(options, scheme, trials) for trials in options.trials}
    first = next(iter(searches.values()))
    given = first["workload"], first["cluster"]
    begin = time.perf_counter()
    simulated = core.make_plan(*given, scheme)
    planning_s = ranks.agreed(time.perf_counter() - begin)
    plans = {START: core.make_plan(*given, scheme, STARTS[scheme])}
    if STARTS[scheme]:
        plans[SIMULATED] = simulated
    plans |= {f"{trials} trials": found["plan"] for trials, found in searches.items()}
    plans |= {method: core.make_plan(*given, scheme, more) for method, more in MORE.get(scheme, {}).items()}
    times = duel(options, plans)
    spent = {SIMULATED: (first["profile_s"] + planning_s, first["profiled"])}
    spent |= {f"{trials} trials": (found["tuning"]["seconds"], found["tuned"]) for trials, found in searches.items()}
    rows = []
    for method, plan in plans.items():
        chosen = methods.chosen_by(plan)
        row = {"method": method, "options": plan["options"], "ms": times[method],
               "predicted_ms": core.simulate(plan, *given, **first["overheads"])["iteration_us"] / 1e3}
        if chosen:
            row["chosen"] = chosen.name
        if method in spent:
            seconds, iterations = spent[method]
            row |= {"found_s": seconds, "lost_s": seconds - iterations * statistics.median(times[method]) / 1e3}
        rows.append(row)
    return {"job": options.job, **where, "iterations": options.iterations, "scheme": scheme, "planning_s": planning_s,
            "rows": rows, "tunings": {trials: found["tuning"] for trials, found in searches.items()}}


def rank_main(options):
    torch.set_num_threads(1)
    with ranks.joined("tuning"):
        results = []
        for coverage in options.coverage or [None]:
            where = shaped(options, coverage)
            results += [compare(options, scheme, where) for _ in range(options.rounds) for scheme in options.schemes]
        first = ranks.is_first()
    if first:
        keep(options.results, results, setting)
        print(table(results))
        if options.results == RESULTS:
            for section in sections():
                replace_section(*section)


def keep(path, results, setting):
    """Write the results to the file, in place of those with the same setting(result)."""
    path.parent.mkdir(exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else []
    anew = {setting(each) for each in results}
    path.write_text(json.dumps([each for each in known if setting(each) not in anew] + results, indent=1) + "\n")


def shaped(options, coverage):
    """The rate of the link, once it has that: the one asked for, or that of a coverage rate. Collective."""
    if coverage:
        job = make_job(options)
        training.train(job, SETTLES)
        seconds, _ = training.train(job, options.iterations)
        size = training.trained_bytes(job.model)
        rate = slow_link.bits_per_second_at(coverage, size, ranks.agreed(statistics.median(seconds)), WORKERS)
    else:
        rate = options.rate * 1e6
    hosts.shape_interface(hosts.interface_of(0), rate)
    return {"rate_mbit": rate / 1e6, "coverage": coverage}


def setting(result):
    """What results of several rounds have in common: (scheme, job, link)."""
    link = f"{result['coverage']:g} times compute" if result["coverage"] else f"{result['rate_mbit']:g} Mb/s"
    return result["scheme"], result["job"], link


def table(results):
    """Medians of all rounds and turns; times the start, by turns, with the smallest and the largest."""
    names = ["scheme", "job", "link", "plan", "ms an iteration", "predicted", "times the start", "found in, s",
             "lost meanwhile, s", "options"]
    lines = [f"| {' | '.join(names)} |", "|---|---|---|---|---:|---:|---:|---:|---:|---|"]
    for same in dict.fromkeys(map(setting, results)):
        rounds = [{row["method"]: row for row in each["rows"]} for each in results if setting(each) == same]
        for method in rounds[0]:
            def median(name):
                values = [each[method][name] for each in rounds if name in each[method]]
                return f"{statistics.median(values):.1f}" if values else ""

            ratios = [a / b for each in rounds for a, b in zip(each[START]["ms"], each[method]["ms"])]
            ms = statistics.median(value for each in rounds for value in each[method]["ms"])
            spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f} - {max(ratios):.2f}]"
            values = " or ".join(dict.fromkeys(
                each[method].get("chosen", "").split(" ")[0] or
                " ".join(f"{name}={value}" for name, value in each[method]["options"].items() if name.endswith("_bytes"))
                for each in rounds))
            lines.append(f"| {' | '.join(same)} | {method} | {ms:.1f} | {median('predicted_ms')} | {spread} | "
                         f"{median('found_s')} | {median('lost_s')} | {values} |")
    return "\n".join(lines)


def sections():
    return [(PAGE, "tuning", table(json.loads(RESULTS.read_text())))]


def parser_of(description, job, results, rounds, turns, iterations):
    """What benchmarks whose plans take turns in one training are asked, with these defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default=job, help="wide, small, gpt or resnet18")
    parser.add_argument("--coverage", type=float, nargs="*", help="how many times as long as computing an iteration it takes "
                        "to communicate the model")
    parser.add_argument("--rounds", type=int, default=rounds, help="in each of which everything is found anew")
    parser.add_argument("--turns", type=int, default=turns, help="of each plan in the comparison of a round")
    parser.add_argument("--iterations", type=int, default=iterations, help="that are timed in a turn")
    parser.add_argument("--results", type=Path, default=results)
    return parser


def run(options, rank_main):
    """Two hosts' ranks run it."""
    if "RANK" in os.environ:
        rank_main(options)
        return 0
    return hosts.run_on_hosts(WORKERS, cpus=range(WORKERS))


def main():
    parser = parser_of(__doc__, "resnet18", RESULTS, rounds=3, turns=5, iterations=10)
    parser.add_argument("--schemes", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--rate", type=float, default=200, help="of the link, Mb/s, without --coverage")
    parser.add_argument("--trials", type=int, nargs="*", default=[8, 16])
    return run(parser.parse_args(), rank_main)


if __name__ == "__main__":
    sys.exit(main())
