"""Links and workers that change in mid-training: a plan that follows them, one that stays, and an oracle that knows.

Two ranks train the small network on Fashion-MNIST over shaped links between hosts (network namespaces). Links and the time
that one rank loses in each backward change at iterations that all three methods share; the oracle puts the plan for the true
links and times in force there. Each method is a training of its own, one after another, several times over; the figure is the
time of an iteration, from fifty iterations after a change to the next: the median of ten means of ten, so that a second in
which the machine does something else counts once. Results are docs/results/following.json and the
picture docs/results/following.svg, milliseconds of each iteration over the seconds of the training.

    .venv/bin/python bench/following.py                      # 25 minutes; needs root, or user namespaces
    .venv/bin/python bench/following.py --scenarios rate --rounds 1
    .venv/bin/python bench/following.py --draw               # tables and picture of the results that are there
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import gradweave
from gradweave import core, ranks
from gradweave.lab import fashion_mnist, hosts, training
from svg import COLORS, STYLE
from training_tables import replace_section

RESULTS = Path(__file__).parent.parent / "docs/results/following.json"
PAGE = RESULTS.with_suffix(".md")
WORKERS, WARM_UP, SETTLES, TIMED = 2, 20, 50, 100  # iterations but the first
METHODS = ("stays", "follows", "oracle")


@dataclass(frozen=True)
class Phase:
    rates: tuple          # Mb/s, by link
    lost_ms: float = 0.0  # by rank 1 in each backward

    def __str__(self):
        lost = f", rank 1 loses {self.lost_ms:g} ms" if self.lost_ms else ""
        return " and ".join(f"{rate:g}" for rate in self.rates) + " Mb/s" + lost


@dataclass(frozen=True)
class Scenario:
    phases: tuple
    scheme: str = "auto"
    allow: str = "exact+corrected"

    def options(self):
        return {"allow": self.allow} if self.scheme == "auto" else {}


def one_link(*rates):
    return tuple(Phase((rate,)) for rate in rates)


SCENARIOS = {
    "rate": Scenario(one_link(200, 50, 400, 100)),
    "rate, exact": Scenario(one_link(400, 100, 800, 200), allow="exact"),
    "one of two links": Scenario((Phase((200, 200)), Phase((200, 20)), Phase((200, 200)))),
    "straggler": Scenario((Phase((100,)), Phase((100,), 60), Phase((100,)))),
    "covap": Scenario(one_link(400, 100, 400), "covap"),
    "delayed_averaging": Scenario(one_link(200, 50, 200), "delayed_averaging"),
}


def shape(phase):
    for link, rate in enumerate(phase.rates):
        hosts.shape_interface(hosts.interface_of(link), rate * 1e6)


def train(scenario, method):
    """On every rank: {"method", "plans": those in force at the end of each phase, "each": seconds of each iteration here}."""
    torch.set_num_threads(1)
    first = scenario.phases[0]
    shape(first)
    job = training.recipe_of("small").make(fashion_mnist.load("train"), ranks.rank(), WORKERS)
    lost = [0.0]
    if ranks.rank() == 1:
        job.model.register_full_backward_pre_hook(lambda *_: time.sleep(lost[0] / 1e3))
    model, optimizer = gradweave.wrap(job.model, job.optimizer, scenario.scheme, options=scenario.options(),
                                      follow=method == "follows", report=False)
    job.optimizer = optimizer
    each = training.train(job, WARM_UP + SETTLES)[0]
    plans = []
    workload, cluster = model.gradweave.workload, model.gradweave.cluster
    for phase in scenario.phases:
        shape(phase)
        lost[0] = phase.lost_ms
        torch.distributed.barrier()
        if method == "oracle" and phase is not first:
            model.gradweave.install(core.make_plan(slower(workload, phase.lost_ms), cluster_at(cluster, first, phase),
                                                   scenario.scheme, scenario.options()))
        each += training.train(job, SETTLES + TIMED)[0]
        plans.append(description(model.gradweave.plan))
    gradweave.finish(model)
    model.gradweave.close()
    return {"method": method, "plans": plans, "each": [round(seconds, 5) for seconds in each]}


def description(plan):
    chosen = core.chosen(plan)
    return f"{chosen['scheme']}, {len(plan['period'])} iterations"


def slower(workload, lost_ms):
    """The workload where the backward of the last layer, which comes first, takes so much longer."""
    *layers, last = workload["layers"]
    return {**workload, "layers": [*layers, {**last, "backward_us": last["backward_us"] + 1e3 * lost_ms}]}


def cluster_at(cluster, first, phase):
    """The cluster, measured in the first phase, as it is in another."""
    def at(link, factor):
        halves = {half: {**link[half], "us_per_byte": link[half]["us_per_byte"] * factor}
                  for half in ("reduce_scatter", "all_gather") if half in link}
        return {**link, **halves, "us_per_byte": link["us_per_byte"] * factor}

    factors = [before / now for before, now in zip(first.rates, phase.rates)]
    return {**cluster, "links": [at(link, factor) for link, factor in zip(cluster["links"], factors)]}


def rank_main(options):
    scenario = SCENARIOS[options.scenarios[0]]
    with ranks.joined("following"):
        results = []
        for number in range(options.rounds):
            for method in METHODS:
                results.append(train(scenario, method))
                if ranks.is_first():
                    print(f"{options.scenarios[0]}, round {number + 1}: {method} "
                          + " ".join(f"{ms:.1f}" for ms in phases_of(results[-1])) + " ms", file=sys.stderr)
        if ranks.is_first():
            options.results.write_text(json.dumps(results))


def phases_of(result):
    """Milliseconds of an iteration in each phase."""
    found, each = [], result["each"][WARM_UP + SETTLES:]
    for begin in range(SETTLES, len(each), SETTLES + TIMED):
        found.append(1e3 * statistics.median(statistics.fmean(each[at:at + 10]) for at in range(begin, begin + TIMED, 10)))
    return found


def row(results, method):
    """Milliseconds of an iteration by phase, the median of all rounds."""
    return [statistics.median(values) for values in zip(*(phases_of(each) for each in results if each["method"] == method))]


def table(name, results):
    """Milliseconds of an iteration by phase; how much longer than the oracle's, with the least and the most of all rounds."""
    scenario = SCENARIOS[name]
    by_method = {method: [phases_of(each) for each in results if each["method"] == method] for method in METHODS}
    lines = ["| " + " | ".join([f"{name} ({scenario.scheme})", *map(str, scenario.phases)]) + " |",
             "|---|" + "---:|" * len(scenario.phases)]
    lines += [f"| {method}: ms an iteration | " + " | ".join(f"{value:.1f}" for value in row(results, method)) + " |"
              for method in METHODS]
    for method in METHODS[:2]:
        cells = []
        for phase in range(len(scenario.phases)):
            ratios = [mine[phase] / best[phase] for mine, best in zip(by_method[method], by_method["oracle"])]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        lines.append(f"| {method}, times the oracle | " + " | ".join(cells) + " |")
    return "\n".join(lines)


PANEL, LEFT, RIGHT, WINDOW = 230, 60, 1080, 5


def panel(name, results, top):
    """SVG elements: milliseconds of an iteration, medians of five, over the seconds of the first round after its warm-up."""
    curves = {}
    for method in METHODS:
        each = next(result["each"] for result in results if result["method"] == method)[WARM_UP:]
        curves[method] = [(sum(each[:place]), 1e3 * statistics.median(each[place:place + WINDOW]))
                       for place in range(0, len(each) - WINDOW, WINDOW)]
    last = max(seconds for curve in curves.values() for seconds, _ in curve)
    # Higher is only what comes once in a hundred times: a pause of the machine.
    high = 1.1 * statistics.quantiles((ms for curve in curves.values() for _, ms in curve), n=100)[-1]
    base = top + PANEL - 40

    def x(seconds):
        return LEFT + (RIGHT - LEFT) * seconds / last

    def y(ms):
        return base - (base - top - 30) * min(1.0, ms / high)

    parts = [f'<text class="title" x="{LEFT}" y="{top + 16}">{name} ({SCENARIOS[name].scheme}): '
             + "; ".join(map(str, SCENARIOS[name].phases)) + "</text>"]
    step = next(value for value in (5, 10, 20, 50, 100, 200, 500, 1000) if high / value <= 6)
    for ms in range(0, int(high) + 1, step):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y(ms):.1f}" y2="{y(ms):.1f}"/>'
                     f'<text x="{LEFT - 6}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms} ms</text>')
    for seconds in range(0, int(last) + 1, 5 if last > 10 else 1):
        parts.append(f'<text x="{x(seconds):.1f}" y="{base + 16}" text-anchor="middle">{seconds} s</text>')
    for number, (method, curve) in enumerate(curves.items()):
        path = " ".join(f"{x(seconds):.1f},{y(ms):.1f}" for seconds, ms in curve)
        at, look = LEFT + 90 * number, f'class="curve" stroke="{COLORS[number]}"'
        parts.append(f'<polyline {look} points="{path}"/>'
                     f'<line {look} x1="{at}" x2="{at + 20}" y1="{base + 30}" y2="{base + 30}"/>'
                     f'<text x="{at + 26}" y="{base + 34}">{method}</text>')
    return parts


def draw(found, path):
    parts = [part for number, (name, results) in enumerate(found.items()) for part in panel(name, results, number * PANEL)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1100 {PANEL * len(found)}">'
    path.write_text("\n".join([head, STYLE, *parts, "</svg>"]) + "\n")


def measure(name, options):
    """The results of a scenario, whose ranks are processes of this program."""
    hosts.become_root_of_namespace(sys.argv)
    with tempfile.NamedTemporaryFile(suffix=".json") as file, \
            hosts.Hosts(WORKERS, links=len(SCENARIOS[name].phases[0].rates)) as machines:
        command = [sys.executable, __file__, "--scenarios", name, "--rounds", str(options.rounds), "--results", file.name]
        code = machines.run(command, cpus=range(WORKERS))
        if code:
            raise subprocess.CalledProcessError(code, command)
        return json.loads(Path(file.name).read_text())


def sections():
    found = json.loads(RESULTS.read_text())
    return [(PAGE, "following", "\n\n".join(table(name, results) for name, results in found.items()))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="*", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options)
        return 0
    found = json.loads(options.results.read_text()) if options.results.exists() else {}
    for name in [] if options.draw else options.scenarios:
        found[name] = measure(name, options)
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(json.dumps(found) + "\n")
    for name in options.scenarios:
        if name in found:
            print(table(name, found[name]) + "\n")
    draw(found, options.results.with_suffix(".svg"))
    if options.results == RESULTS:
        for section in sections():
            replace_section(*section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
