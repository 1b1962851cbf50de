"""One table: every scheme and every peer, on the same job over the same shaped link, in turns.

Rows are measured in small groups, each together with compute alone and DistributedDataParallel, as it comes and tuned, so that
every ratio is taken within a round. Results are lines of JSON, one for each row, job and coverage rate. Rows that exist are
kept: the whole can be filled in pieces, and an interrupted run continues where it stopped. A row that the core or the
engine refuses gets a line that says why, and is tried again the next time.

    .venv/bin/python bench/table.py --list                                # what is there, what is missing, how long it takes
    .venv/bin/python bench/table.py --coverage 2 --jobs wide
    .venv/bin/python bench/table.py --coverage 64 --rounds 2 --only 'delayed_averaging*'
"""

import argparse
import fnmatch
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

import torch

import rows
from gradweave import core, ranks
from gradweave.lab import demo, jobs, methods, progress, slow_link, training, turns

RESULTS = Path(__file__).parent.parent / "docs/results/table.jsonl"
JOBS = ("wide", "small", "gpt", "resnet18")
COVERAGE_RATES = (0.5, 1, 2, 4, 16, 64)
TOGETHER = 10  # rows that take turns: more share each round's noise, and keep more idle groups
TURN_S = 0.9
SETTING_S = 40  # to start ranks, to measure compute, link and layers
# On the machine of docs/results/schemes.md: for estimates alone.
COMPUTE_S = {"wide": 0.15, "small": 0.02, "gpt": 0.15, "resnet18": 0.25}
ANCHORS = ("compute alone", "DDP (default)", "DDP (tuned)")


def rounds_at(coverage, asked=None):
    return asked or (5 if coverage <= 4 else 2)


def turn_of(iteration_s, period=1, prologue=0):
    """(timed, warm-up) iterations of a turn: about TURN_S, whole periods; the warm-up fills the links, and takes what they
    have saved up."""
    timed = max(1, min(12, round(TURN_S / iteration_s)))
    return period * math.ceil(timed / period), max(2, prologue + period - 1)


def done_rows(path):
    """{(job, coverage, row): the newest line}."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(line["job"], line["coverage"], line["row"]): line for line in lines}


def all_rows():
    return [*rows.planned(), *(name for name, peer in rows.peers().items() if peer.timed)]


def pieces(options):
    """[(job, coverage rate, names of the missing rows that are measured together)]."""
    done = done_rows(options.results)
    found = []
    for coverage in options.coverage:
        for job in options.jobs:
            missing = [name for name in all_rows() if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)
                       and "measured_ms" not in done.get((job, coverage, name), {})]
            found += [(job, coverage, missing[at:at + TOGETHER]) for at in range(0, len(missing), TOGETHER)]
    return found


def estimated_s(job, coverage, names, rounds):
    """Roughly how long a piece takes where nothing else runs; rows that hide their communication are taken to need a period
    of the coverage rate, others to take compute and communication one after the other."""
    compute = COMPUTE_S[job]
    slow = compute * (1 + coverage)
    schemes = core.schemes()
    total = 2 * sum(turn_of(slow)) * slow + sum(turn_of(compute)) * compute  # anchors
    for name in names:
        method = rows.planned().get(name)
        exact = method and method.effect(schemes) in ("exact", "compressed")
        each, turn = (slow, turn_of(slow)) if exact else (compute, turn_of(compute, period=max(1, math.ceil(coverage))))
        total += sum(turn) * each + compute * coverage  # the drain
    tuning = 18 * slow if coverage <= 4 else 6 * slow
    return SETTING_S + tuning + (4 + 2 * len(names)) * compute + rounds * total


def planned_contestant(name, method, job, setting):
    """(contestant, what is known of its plan before it runs). Errors: ValueError, RuntimeError: refused."""
    cluster = slow_link.cluster_for(setting, method)
    plan = core.make_plan(setting.workload, cluster, method.scheme, method.plan_options)
    expected = setting.simulate(plan, cluster)
    contestant = turns.planned(job, name, setting.emulation, plan=plan, **method.wrap_options)
    contestant.turn = turn_of(expected["iteration_us"] / 1e6, len(plan["period"]), len(plan.get("prologue", [])))
    try:
        training.train(job, 1)
    except (ValueError, RuntimeError) as error:
        job.model.gradweave.close(error)
        raise
    known = {"plan": plan, "cluster": cluster, "predicted_before_ms": expected["iteration_us"] / 1e3,
             "period": len(plan["period"]), "updates_per_iteration": expected["updates_per_iteration"],
             "staleness": expected["staleness_max"]}
    if chosen := methods.chosen_by(plan):
        known["chosen"] = chosen.name
    return contestant, known


def peer_contestant(name, peer, job, setting, kind):
    if setting.emulation:
        raise ValueError("peers run on shaped links alone")
    network = job.model
    steps = peer.steps(setting.coverage_wanted, kind)
    finish = peer.train(job, steps)
    contestant = turns.Contestant(name, job, network, finish=finish)
    training.train(job, peer.first)
    seconds, _ = training.train(job, 1)
    contestant.turn = turn_of(setting.compute_s if steps else turns.slowest(seconds[0]), steps or 1)
    return contestant, {"period": steps or 1}


def measure(job_name, coverage, names, rounds):
    """[line of the results for each of `names`], on every rank. Collective."""
    torch.set_num_threads(1)
    recipe = training.recipe_of(job_name)
    data = recipe.kind.load("train")

    def job():
        return recipe.make(data, ranks.rank(), ranks.world_size())

    with progress.Progress(1, "measuring", ranks.is_first()) as bar:
        setting = demo.measure_setting(job_name, coverage, job, bar)
        slow = setting.compute_s * (1 + setting.coverage())
        tuned_mb = demo.tune_by_hand(job, setting, bar, *((4, 2) if coverage <= 4 else (3, 1)))
        anchors = [turns.alone(job()), turns.data_parallel(job(), "DDP (default)", setting.emulation),
                   turns.data_parallel(job(), "DDP (tuned)", setting.emulation, bucket_cap_mb=tuned_mb)]
        anchors[0].turn = turn_of(setting.compute_s)
        anchors[1].turn = anchors[2].turn = turn_of(slow)
        contestants, known, refused = [], {}, {}
        for name in names:
            try:
                if method := rows.planned().get(name):
                    contestant, known[name] = planned_contestant(name, method, job(), setting)
                else:
                    contestant, known[name] = peer_contestant(name, rows.peers()[name], job(), setting, job_name)
                contestants.append(contestant)
            except (ValueError, RuntimeError, ImportError) as error:  # alike on all ranks
                refused[name] = str(error).splitlines()[0]
                if ranks.is_first():
                    print(f"  {name}: left out, {refused[name]}", file=sys.stderr)
        turn_total = sum(sum(each.turn) for each in anchors + contestants)
        bar.label, bar.total = f"{job_name}, coverage rate {coverage:g}", bar.done + rounds * turn_total
        turns.run_rounds(anchors + contestants, rounds, 0, 0, bar.advance)
        for contestant in anchors + contestants:
            if contestant.close:
                contestant.close()
    # The machine changes its speed by the minute: a prediction is of the processors as they were in the turns.
    profiled_us = sum(layer["forward_us"] + layer["backward_us"] for layer in setting.workload["layers"]) + setting.rest_us
    alone_s = turns.iteration_seconds(anchors[0])
    speed, lockstep = 1e6 * alone_s / profiled_us, statistics.median(anchors[0].lockstep_seconds) / alone_s
    for each in known.values():
        if plan := each.pop("plan", None):
            each["predicted_ms"] = setting.simulate(plan, each.pop("cluster"), speed, lockstep)["iteration_us"] / 1e3
    common = {"job": job_name, "coverage": coverage, "workers": ranks.world_size(), "links": setting.kind,
              "bits_per_second": setting.bits_per_second, "coverage_rate": setting.coverage(), "tuned_mb": tuned_mb,
              "parameter_bytes": setting.parameter_bytes, **setting.costs, "speed": speed, "lockstep": lockstep,
              "link": setting.cluster["links"][0], "torch": torch.__version__,
              "anchors": {name: line_of(each, anchors) for name, each in zip(ANCHORS, anchors)}}
    lines = [{**common, "row": each.name, **known[each.name], **line_of(each, anchors)} for each in contestants]
    return lines + [{"job": job_name, "coverage": coverage, "row": name, "refused": why} for name, why in refused.items()]


def line_of(contestant, anchors):
    alone, default, tuned = anchors
    return {"measured_ms": 1e3 * turns.iteration_seconds(contestant),
            "over_compute": turns.ratio(alone, contestant),
            "speedup_over_default": turns.ratio(contestant, default), "speedup_over_tuned": turns.ratio(contestant, tuned),
            "segments_ms": [1e3 * seconds for seconds in contestant.segment_seconds], "turn": contestant.turn,
            "sent_bytes": sorted(contestant.sent_bytes)[len(contestant.sent_bytes) // 2]}


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="*", choices=list(jobs.KINDS), default=list(JOBS))
    parser.add_argument("--coverage", nargs="*", type=float, default=list(COVERAGE_RATES))
    parser.add_argument("--rounds", type=int, help="(default: 5, and 2 at coverage rates 16 and 64)")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of rows, e.g. 'delayed_averaging*'")
    parser.add_argument("--list", action="store_true", help="the missing pieces and about how long each takes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--links", choices=["auto", "shaped", "emulated"], default="shaped")
    parser.add_argument("--pin", action="store_true", help="pin each worker to a processor of its own")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--piece", help=argparse.SUPPRESS)  # for the ranks
    return parser.parse_args(arguments)


def work(options):
    """In a rank: one piece."""
    job, coverage, names = json.loads(options.piece)
    with ranks.joined("table"):
        lines = measure(job, coverage, names, rounds_at(coverage, options.rounds))
        if ranks.is_first():
            with options.results.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)


def main():
    options = parsed(sys.argv[1:])
    if "RANK" in os.environ:
        work(options)
        return 0
    found = pieces(options)
    costs = [estimated_s(*piece, rounds_at(piece[1], options.rounds)) for piece in found]
    if options.list:
        for (job, coverage, names), cost in zip(found, costs):
            print(f"{cost / 60:5.1f} min  {job}, coverage rate {coverage:g}: {', '.join(names)}")
        print(f"{sum(costs) / 60:5.0f} min  {len(found)} pieces are missing")
        return 0
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for number, (piece, cost) in enumerate(zip(found, costs), start=1):
        print(f"piece {number} of {len(found)}: {piece[0]}, coverage rate {piece[1]:g}, about {cost / 60:.0f} min, "
              f"{sum(costs[number - 1:]) / 60:.0f} min in all: {', '.join(piece[2])}", file=sys.stderr)
        begin = time.monotonic()
        rest = [argument for argument in sys.argv[1:] if not argument.startswith("--piece")]
        code = demo.launch(options, [__file__, *rest, "--piece", json.dumps(piece)])
        if code:
            return code
        print(f"  took {(time.monotonic() - begin) / 60:.1f} min", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
