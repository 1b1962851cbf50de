"""What a job predicts of every scheme's plan, beside what an iteration by it takes.

Two ranks train one job over a shaped link between hosts (network namespaces). In each round `wrap()` profiles and probes
anew; every scheme is planned and simulated by what it has found, as the job itself would, and the plans take turns in one
training. Results are docs/results/predicted.json; what is measured again replaces what is there.

    .venv/bin/python bench/predicted.py                       # 15 minutes; needs root, or user namespaces
    .venv/bin/python bench/predicted.py --job resnet18 --coverage 1 --rounds 1
"""

import json
import statistics
import sys
from pathlib import Path

import torch

import gradweave
import tuning
from gradweave import core, ranks
from gradweave.lab import training
from training_tables import markdown, replace_section

RESULTS = Path(__file__).parent.parent / "docs/results/predicted.json"
PAGE = RESULTS.with_name("following.md")
ANSWERS = RESULTS.parents[1] / "performance.md"
# What is planned besides every scheme as it is.
MORE = {"ddp compressor=int8": ("ddp", {"compressor": "int8"}),
        "delayed_averaging compressor=int4": ("delayed_averaging", {"compressor": "int4"})}


def plans_of(workload, cluster):
    """{method: plan} of all schemes."""
    methods = {each["name"]: (each["name"], {}) for each in core.schemes() if each["name"] != "auto"} | MORE
    return {method: core.make_plan(workload, cluster, scheme, options) for method, (scheme, options) in methods.items()}


def compare(options):
    """{"cluster", "overheads": as the job has found them, "rows": [{"method", "predicted_ms", "ms": of each turn}, ...]}.
    Collective."""
    job = tuning.make_job(options)
    model, job.optimizer = gradweave.wrap(job.model, job.optimizer, options={"allow": "exact+local+compressed"}, follow=False,
                                          report=False)
    session = model.gradweave
    while session.overheads is None:
        training.train(job, 1)
    given, overheads = (session.workload, session.cluster), session.overheads
    gradweave.finish(model)
    session.close()
    plans = plans_of(*given)
    times = tuning.duel(options, plans)
    rows = [{"method": method, "predicted_ms": core.simulate(plan, *given, **overheads)["iteration_us"] / 1e3,
             "ms": times[method]} for method, plan in plans.items()]
    return {"cluster": given[1].to_dict(), "overheads": overheads, "rows": rows}


def rank_main(options):
    torch.set_num_threads(1)
    with ranks.joined("predicted"):
        results = []
        for coverage in options.coverage or [1.0, 2.0]:
            for _ in range(options.rounds):
                results.append({"job": options.job, **tuning.shaped(options, coverage), **compare(options)})
                if ranks.is_first():
                    print(f"{options.job} at {coverage:g}: {summary(results[-1:])}", file=sys.stderr, flush=True)
        first = ranks.is_first()
    if first:
        tuning.keep(options.results, results, setting)
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


def figures(results):
    """As texts: the mean error, that of sizes, the worst, predictions within 10 %, and what turns of one plan differ by."""
    errors = [100 * error for each in errors_of(results).values() for error in each]
    within = sum(abs(error) <= 10 for error in errors)
    apart = statistics.mean(100 * (max(row["ms"]) / min(row["ms"]) - 1) for each in results for row in each["rows"])
    return [f"{statistics.mean(errors):+.1f} %", f"{statistics.mean(map(abs, errors)):.1f} %",
            f"{max(errors, key=abs):+.0f} %", f"{within} of {len(errors)}", f"{apart:.1f} %"]


def summary(results):
    return "{} in the mean, {} in size, {} at worst; {} predictions are within 10 %; turns of one plan differ by {}".format(
        *figures(results))


def table(results):
    """A row for each method: error in per cent, by setting, each round's."""
    errors = errors_of(results)
    settings = sorted(set(map(setting, results)))
    methods = dict.fromkeys(method for _, _, method in errors)
    rows = [[method] + [" ".join(f"{100 * error:+.0f}" for error in errors[*where, method]) for where in settings]
            for method in methods]
    for name, key, scale, digits in (("contention", "contention", 1, 2), ("burst, ms", "burst_us", 1e-3, 1)):
        found = {where: [scale * each["overheads"][key] for each in results if setting(each) == where] for where in settings}
        rows.append([name] + [" ".join(f"{value:.{digits}f}" for value in found[where]) for where in settings])
    return markdown(["scheme"] + [f"{job} at {coverage:g}" for job, coverage in settings], rows)


def sections():
    results = json.loads(RESULTS.read_text())
    jobs = {job: [each for each in results if each["job"] == job] for job in sorted({each["job"] for each in results})}
    lines = [f"- *{job}*: {summary(of_job)}." for job, of_job in jobs.items()]
    head = ["job", "error, mean", "size", "at worst", "within 10 %", "turns of one plan differ by"]
    return [(PAGE, "predicted", "\n".join([table(results), "", *lines])),
            (ANSWERS, "job predictions", markdown(head, [[job, *figures(of_job)] for job, of_job in jobs.items()]))]


def main():
    parser = tuning.parser_of(__doc__, "gpt", RESULTS, rounds=2, turns=2, iterations=8)
    return tuning.run(parser.parse_args(), rank_main)


if __name__ == "__main__":
    sys.exit(main())
