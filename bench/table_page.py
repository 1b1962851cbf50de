"""Writes the tables of every scheme into docs/results/schemes.md, and what they come to with a picture into
docs/performance.md and README.md, from docs/results/table.jsonl (times, bytes), first-screen.jsonl (times of the rows that
README.md shows) and accuracy.jsonl (accuracy); first-screen-again*.jsonl is what `bench/first_screen.py` measured another day.

    .venv/bin/python bench/table_page.py
"""

import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import accuracy
import rows
import table
from gradweave import core
from gradweave.lab import methods
from svg import COLORS, STYLE
from training_tables import markdown, replace_section

DOCS = Path(__file__).parent.parent / "docs"
ACCURACIES = DOCS / "results/accuracy.jsonl"
SHOWN_TIMES = DOCS / "results/first-screen.jsonl"  # of SHOWN, each coverage rate in one run
SHOWN_AGAIN = DOCS / "results/first-screen-again.jsonl", DOCS / "results/first-screen-again-accuracy.jsonl"
IN_THE_JOB = {"": DOCS / "results/predictions.jsonl",
              " at half speed": DOCS / "results/predictions-half-speed.jsonl"}  # of the processors
MEASURED_AGAIN = DOCS / "results/predictions-again.jsonl"  # the same plans in another run
COSTS = ("handover_us", "launch_us", "apply_us", "burst_us")  # of messages and steps, besides start-up, bytes and shares
PICTURED = (2.0, 64.0)
RATES = (0.5, 1.0, 2.0, 4.0, 16.0, 64.0)
AVERAGES, IN_4_BITS = (f"delayed_averaging compressor={name}" for name in ("auto", "int4"))
PREDICTED = (0.5, 1.0, 2.0)
DEFAULT, TUNED = "DDP (default)", "DDP (tuned)"
# What a reader chooses from: the others are in the tables.
IN_SHORT = (TUNED, "DDP (fp16 hook)", "DDP (PowerSGD hook)", "post-local SGD", "Streaming DiLoCo", "dear", "us_byte", "auto",
            "deft", "deft correction=local", "delayed_averaging", AVERAGES)
SHOWN = (TUNED, "DDP (fp16 hook)", "DDP (PowerSGD hook)", "post-local SGD", "Streaming DiLoCo", "auto", AVERAGES)
CHOSEN = ("mg_wfbp", "us_byte", "dear", "ddp compressor=fp16", "ddp compressor=int8", "local_sgd", "dreamddp",
          "delayed_averaging", AVERAGES, IN_4_BITS)
SLOW = 1.5  # times compute that DDP (tuned) takes at least where a link's rate can be told from it


@dataclass(frozen=True)
class Judged:
    """A job whose accuracy is measured, and drawn over its time; two workers."""
    job: str
    optimizer: str
    schedule: str
    measure: str
    target: float                        # percent of it
    axis: tuple[int, int]
    drawn: dict[float, tuple[str, ...]]  # {coverage rate: rows}
    note: str                            # of the curves
    picture: str

    def of(self, done):
        """Its runs among those of accuracy.done_runs()."""
        return {run: result for run, result in done.items() if (run.job, run.workers, run.optimizer, run.schedule) ==
                (self.job, 2, self.optimizer, self.schedule)}


SMALL = Judged(job="small", optimizer="sgd", schedule="constant", measure="test accuracy (%)", target=88.5, axis=(75, 91),
               drawn=dict.fromkeys(PICTURED, (TUNED, "DDP (fp16 hook)", "Streaming DiLoCo", "auto", AVERAGES)),
               note="The last point is on all test images, the others on half.", picture="results/accuracy-over-time.svg")
_AT_2, _, _AT_64 = rows.ON_TIME
GPT = Judged(job="gpt", optimizer="adamw", schedule=accuracy.HIGH["gpt"], measure="next bytes that are right (%)",
             target=57.0, axis=(25, 62),
             drawn={2.0: (TUNED, "DDP (fp16 hook)", "Streaming DiLoCo", "ddp compressor=int8", "dear compressor=int8",
                          IN_4_BITS, _AT_2),
                    64.0: (TUNED, "DDP (fp16 hook)", "Streaming DiLoCo", "post-local SGD", "ddp compressor=int8",
                           AVERAGES, _AT_64)},
             note="On held-out text.", picture="results/gpt-over-time.svg")


def timed(path):
    """{(job, coverage): {row: line}}, with DistributedDataParallel's rows, which every line brings with it. Rows were measured
    in different runs, when machine and link had other speeds: "compared_ms" is what a row would take where compute and DDP
    (tuned) take their medians over the runs, "compared" how many times as fast as DDP (tuned) it is there, "compute_ms" that
    median. A row keeps its place between the two; where they hardly differ, its ratio to DDP (tuned)."""
    found = {}
    for (job, coverage, name), line in table.done_rows(path).items():
        group = found.setdefault((job, coverage), {})
        group[name] = line
        for anchor, value in line.get("anchors", {}).items():
            group.setdefault(anchor, {**value, "anchors_of": []})["anchors_of"].append(value)
    for group in found.values():
        for name in table.ANCHORS:
            if name in group:  # one measurement in each piece
                group[name]["measured_ms"] = statistics.median(value["measured_ms"] for value in group[name]["anchors_of"])
        if TUNED in group:
            compare(group)
    return dict(sorted(found.items(),
                       key=lambda entry: (table.JOBS.index(entry[0][0]) if entry[0][0] in table.JOBS else 9, entry[0][1])))


def compare(group):
    """Gives the rows of one job and coverage rate their "compared", "compared_ms" and "compute_ms", as timed() has them."""
    usual = statistics.median(value["over_compute"][0] for value in group[TUNED]["anchors_of"])
    compute_ms = group[TUNED]["measured_ms"] / usual
    for name, line in group.items():
        if "speedup_over_tuned" not in line:
            continue
        tuned = line["anchors"][TUNED]["over_compute"][0] if "anchors" in line else usual
        if name in table.ANCHORS or min(tuned, usual) < SLOW:
            compared = statistics.median(each["speedup_over_tuned"][0] for each in line.get("anchors_of", [line]))
        else:
            compared = usual / (1 + (line["over_compute"][0] - 1) * (usual - 1) / (tuned - 1))
        line |= {"compared": compared, "compared_ms": compute_ms * usual / compared, "compute_ms": compute_ms}


def curves(path, judged=SMALL):
    """{(method, coverage): [curve of each seed]}: [(iterations, accuracy in percent), ...]."""
    found = {}
    for run, result in judged.of(accuracy.done_runs(path)).items():
        epochs, each = result["accuracy"], accuracy.ITERATIONS[judged.job]
        curve = result.get("curve") or [(each * (number + 1), value) for number, value in enumerate(epochs)]
        curve[-1] = (curve[-1][0], epochs[-1])
        found.setdefault((run.method, run.coverage), []).append([tuple(point) for point in curve])
    return found


def curves_of(name, coverage, found):
    """The curves of a row: exact ones have DistributedDataParallel's, and those that don't depend on the coverage rate have
    one for all; [] where none was measured."""
    if name == "compute alone":
        return []
    if name in (DEFAULT, TUNED) or rows.is_exact(name):
        name = accuracy.SYNCHRONOUS
    elif rows.depends_on_rate(name):
        return found.get((name, coverage), [])
    return next((value for (method, _), value in found.items() if method == name), [])


def iterations_to(curve, target):
    """Iterations at which a curve, straight between its points, first reaches `target`; None if it doesn't."""
    before = (0, 10.0)
    for point in curve:
        if point[1] >= target:
            return before[0] + (point[0] - before[0]) * (target - before[1]) / (point[1] - before[1])
        before = point
    return None


def seconds_to_target(name, coverage, line, found, target=SMALL.target):
    """(median over the seeds of the seconds to `target`, infinity if it isn't reached, and how many of how many seeds reach
    it), or None without curves. Where ranks step on their own, one exchange of the whole model is added, which makes them
    equal in the end."""
    of_row = curves_of(name, coverage, found)
    if not of_row:
        return None
    counts = [iterations_to(curve, target) for curve in of_row]
    middle = statistics.median(math.inf if count is None else count for count in counts)
    end_ms = coverage * line["compute_ms"] if differ_at_the_end(name) else 0.0
    return (middle * line["compared_ms"] + end_ms) / 1e3, sum(count is not None for count in counts), len(counts)


def seconds_told(reach):
    """What a table says of what seconds_to_target() found."""
    seconds, reached, seeds = reach
    some = f" ({reached} of {seeds})" if reached < seeds else ""
    return (f"{seconds:.0f} s" if math.isfinite(seconds) else "not reached") + some


def differ_at_the_end(name):
    """Whether ranks have different parameters until the end of training by the row."""
    if name in table.ANCHORS:
        return False
    if peer := rows.peers().get(name):
        return peer.period is not None
    return methods.parse(name).effect(core.schemes()) in ("local", "corrected", "exact+local+compressed")


def final_accuracy(name, coverage, found, digits):
    """Mean over the seeds of the accuracy at the end, in percent; "" where none was measured."""
    last = [curve[-1][1] for curve in curves_of(name, coverage, found)]
    return f"{statistics.mean(last):.{digits}f}" if last else ""


def cells(name, coverage, line, found, judged):
    if "refused" in line:
        return [name, f"refused: {line['refused']}"] + [""] * (8 if judged else 6)
    communicates = name != "compute alone"
    middle, low, high = line["over_compute"]
    result = [name + (f" ({line['chosen']})" if "chosen" in line else ""), f"{line['measured_ms']:.0f}",
              f"{middle:.2f} ({low:.2f} - {high:.2f})" if communicates else "1.00",
              f"{line['speedup_over_tuned'][0]:.2f}" if communicates else "",
              f"{line['predicted_ms']:.0f}" if "predicted_ms" in line else "",
              f"{100 * (line['predicted_ms'] / line['measured_ms'] - 1):+.1f}" if "predicted_ms" in line else "",
              f"{line['sent_bytes'] / 1e6:.2f}" if communicates else ""]
    if judged:
        reach = seconds_to_target(name, coverage, line, found)
        result += ["" if reach is None else seconds_told(reach), final_accuracy(name, coverage, found, 2)]
    return result


def order():
    return [*table.ANCHORS, *rows.peers(), *rows.planned()]


def page(found_times, found_curves):
    parts = []
    for (job, coverage), group in found_times.items():
        any_line = next((line for line in group.values() if "bits_per_second" in line), None)
        if any_line is None:
            continue
        judged = job == SMALL.job
        header = ["", "ms per iteration", "times compute (spread)", "times as fast as DDP tuned", "predicted ms", "error, %",
                  "MB sent"]
        if judged:
            header += [f"to {SMALL.target:g} %", "accuracy, %"]
        lines = [cells(name, coverage, group[name], found_curves, judged) for name in order() if name in group]
        errors = [abs(line["predicted_ms"] / line["measured_ms"] - 1) for line in group.values() if "predicted_ms" in line]
        told = (f"; predictions: mean error {100 * statistics.mean(errors):.1f} %, worst {100 * max(errors):.1f} %"
                if errors else "")
        parts.append(f"**{job}, coverage rate {coverage:g}** ({any_line['bits_per_second'] / 1e6:.1f} Mb/s, "
                     f"{any_line['parameter_bytes'] / 1e6:.1f} MB of parameters, {any_line['workers']} workers{told})\n\n"
                     + markdown(header, lines))
    return "\n\n".join(parts)


def compared(times, job, name, rate):
    """How many times as fast as DDP (tuned) a row trains, as a table says it; "" where it was not measured."""
    line = times.get((job, rate), {}).get(name, {})
    return f"{line['compared']:.2f}" if "compared" in line else ""


def in_short(times, found):
    """How many times faster than DistributedDataParallel tuned by hand the job SMALL trains, with the accuracy beside it."""
    return markdown(["", *(f"{rate:g}" for rate in RATES), *(f"accuracy at {rate:g}, %" for rate in PICTURED)],
                    [[name, *(compared(times, SMALL.job, name, rate) for rate in RATES),
                      *(final_accuracy(name, rate, found, 1) for rate in PICTURED)] for name in IN_SHORT])


def gains(times):
    """How many times as fast as DistributedDataParallel tuned by hand the rows of CHOSEN train the job SMALL; in brackets the
    same of the job 'wide'."""
    def cell(name, rate):
        wide = compared(times, "wide", name, rate)
        return compared(times, SMALL.job, name, rate) + (f" ({wide})" if wide else "")

    return markdown(["coverage rate", *(f"{rate:g}" for rate in RATES)],
                    [[f"`{name}`", *(cell(name, rate) for rate in RATES)] for name in CHOSEN])


def in_words(times):
    """What averages in 4 bits hide, and what exact schemes gain on models of many small tensors."""
    def over_compute(job):
        found = [group[AVERAGES]["over_compute"][0] for (name, _), group in times.items() if name == job and AVERAGES in group]
        return f"{min(found):.2f} to {max(found):.2f}"

    many = [times[job, 1.0]["dear"]["compared"] for job in ("gpt", "resnet18")]
    return (f"At all these rates an iteration of `{AVERAGES}` takes {over_compute(SMALL.job)} times as long as "
            f"its computation alone, and for a network\nof 13.2 MB {over_compute('wide')} times. On a GPT of 3.3 MB and on "
            f"ResNet-18, at coverage rate 1, `dear` is {many[0]:.2f} and {many[1]:.2f} times\nas fast as DDP (tuned).")


def predictions(times):
    """How far the simulator is off, over the registry's schemes at the coverage rates at which all jobs were measured."""
    schemes = {scheme["name"] for scheme in core.schemes()}
    lines = [line for (_, rate), group in times.items() if rate in PREDICTED
             for name, line in group.items() if name in schemes and "predicted_ms" in line]
    errors = [abs(line["predicted_ms"] / line["measured_ms"] - 1) for line in lines]
    turns = [max(line["segments_ms"]) / min(line["segments_ms"]) for line in lines]
    close = sum(error <= 0.1 for error in errors) / len(errors)
    return (f"Over {len(errors)} rows (every scheme, four networks, coverage rates 0.5 to 2) the predicted time of an "
            f"iteration is {100 * statistics.mean(errors):.1f} %\noff on average and {100 * max(errors):.0f} % at worst; "
            f"{100 * close:.0f} % of the rows are within 10 %. The machine itself\nvaries as much: in the median row the "
            f"slowest turn takes {statistics.median(turns):.2f} times as long as the fastest.")


def predicted_and_repeated():
    """How far those predictions are off at coverage rates 0.5 to 2, and how far those rows differ that were measured again."""
    again = table.done_rows(MEASURED_AGAIN)
    lines = {key: line for key, line in table.done_rows(IN_THE_JOB[""]).items() if key[1] in PREDICTED}
    errors = [100 * (line["predicted_ms"] / line["measured_ms"] - 1) for line in lines.values()]
    apart = [100 * abs(line["over_compute"][0] / lines[key]["over_compute"][0] - 1) for key, line in again.items()]
    mean, size, apart_mean = statistics.mean(errors), statistics.mean(map(abs, errors)), statistics.mean(apart)
    close = sum(abs(error) <= 12 for error in errors)
    return (f"**Over the {len(errors)} rows of *wide*, *gpt* and *resnet18*** predictions are {mean:+.1f} % off in the mean, "
            f"{size:.1f} % in\nsize, and {close} rows are within 12 %. {len(apart)} of them, measured again in another run, "
            f"took\n{apart_mean:.1f} % more or less in the mean, and {max(apart):.1f} % at most, each beside compute of its "
            "run.")


def measured_in_the_job():
    """How far the simulator is off where it is given what messages cost in the job itself, and how far turns differ."""
    rows = []
    for speed, path in IN_THE_JOB.items():
        for (job, rate), group in timed(path).items():
            lines = [line for line in group.values() if "predicted_ms" in line]
            errors = [100 * (line["predicted_ms"] / line["measured_ms"] - 1) for line in lines]
            costs = ([line["link"]["startup_us"] for line in lines],
                     *([line[cost] for line in lines if cost in line] for cost in COSTS))
            skews = [line["skew"] for line in lines if "skew" in line]
            turns = [max(line["segments_ms"]) / min(line["segments_ms"]) for line in lines]
            rows.append([job + speed, f"{rate:g}", *(f"{statistics.mean(cost) / 1e3:.1f}" if cost else "" for cost in costs),
                         f"{statistics.mean(skews):.2f}" if skews else "",
                         f"{statistics.mean(errors):+.1f}", f"{statistics.mean(map(abs, errors)):.1f}",
                         f"{max(errors, key=abs):+.1f}", f"{statistics.mean(turns):.2f} ({max(turns):.2f})"])
    return markdown(["job", "coverage rate", "start-up, ms", "hand-over, ms", "launch, ms", "apply, ms", "burst, ms",
                     "skew", "mean error, %", "mean of its size", "worst", "slowest over fastest turn (most)"], rows)


def kept_accuracy(done):
    """Mean accuracy of the same seeds by DistributedDataParallel and by averages in the background; "" where none was run."""
    columns = ((accuracy.SYNCHRONOUS, 2.0), ("delayed_averaging", 2.0), (IN_4_BITS, 16.0), (IN_4_BITS, 64.0))
    lines = []
    for workers in (2, 4):
        for optimizer, title in (("sgd", "SGD"), ("adamw", "AdamW")):
            row = [f"{workers}, {title}"]
            for method, rate in columns:
                runs = [accuracy.Run(method, optimizer, workers, seed, coverage=rate) for seed in range(3)]
                found = [done[run]["accuracy"][-1] for run in runs if run in done]
                row.append(f"{statistics.mean(found):.2f}" if found else "")
            lines.append(row)
    return markdown(["workers, optimizer", "DistributedDataParallel", "`delayed_averaging`, at 2", "in 4 bits, at 16",
                     "in 4 bits, at 64"], lines)


PANEL, TOP, RIGHT, LETTER = 370, 34, 600, 7


def mean_curve(of_row, ms):
    """[(seconds, mean accuracy over the seeds)] at the points that all seeds have."""
    common = sorted(set.intersection(*({place for place, _ in curve} for curve in of_row)))
    return [(place * ms / 1e3, statistics.mean(dict(curve)[place] for curve in of_row)) for place in common]


def ticks(first, last):
    """1, 2, 5, 10, ... seconds between the two."""
    decades = [10.0 ** power for power in range(-1, 6)]
    return [value for decade in decades for value in (decade, 2 * decade, 5 * decade) if first <= value <= last]


def panel(judged, group, coverage, found, top):
    """SVG elements of one coverage rate, fastest rows first; [] without data."""
    series, names = [], list(dict.fromkeys(name for drawn in judged.drawn.values() for name in drawn))
    for name in judged.drawn[coverage]:
        line = group.get(name)
        of_row = curves_of(name, coverage, found)
        if line and "compared_ms" in line and of_row:
            reach = seconds_to_target(name, coverage, line, found, judged.target)
            series.append((reach[0], name, mean_curve(of_row, line["compared_ms"])))
    series.sort(key=lambda entry: entry[0])
    if not series:
        return []
    times = [time for _, _, curve in series for time, _ in curve]
    first, last, left, right = min(times) * 0.9, max(times) * 1.1, 46, RIGHT
    base, (low, high) = top + PANEL - 46, judged.axis

    def x(seconds):
        return left + (right - left) * math.log(seconds / first) / math.log(last / first)

    def y(percent):
        return base - (base - top - TOP) * (max(low, percent) - low) / (high - low)

    parts = [f'<text class="title" x="{left}" y="{top + 16}">'
             f'Coverage rate {coverage:g}: {judged.measure} over seconds of training</text>']
    for percent in range(low, high + 1, 5):
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(percent):.1f}" y2="{y(percent):.1f}"/>'
                     f'<text x="{left - 8}" y="{y(percent) + 4:.1f}" text-anchor="end">{percent}</text>')
    for seconds in ticks(first, last):
        parts.append(f'<line class="grid" x1="{x(seconds):.1f}" x2="{x(seconds):.1f}" y1="{top + TOP}" y2="{base}"/>'
                     f'<text x="{x(seconds):.1f}" y="{base + 18}" text-anchor="middle">{seconds:g} s</text>')
    line_height = 18
    for number, (reach, name, curve) in enumerate(series):
        look = f'stroke="{COLORS[names.index(name)]}"'
        path = " ".join(f"{x(seconds):.1f},{y(percent):.1f}" for seconds, percent in curve)
        parts.append(f'<polyline class="curve" {look} points="{path}"/>')
        at_x, at_y = right + 18, top + TOP + 6 + number * line_height
        told = f" {reach:.0f} s" if math.isfinite(reach) else ""
        parts.append(f'<line class="curve" {look} x1="{at_x}" x2="{at_x + 22}" y1="{at_y}" y2="{at_y}"/>'
                     f'<text x="{at_x + 28}" y="{at_y + 4}">{name}{told}</text>')
    return parts


def picture(found_times, found_curves, judged=SMALL):
    """The picture as SVG, or None without data."""
    panels, top = [], 0
    for coverage in PICTURED:
        parts = panel(judged, found_times.get((judged.job, coverage), {}), coverage, found_curves, top)
        if parts:
            panels += parts
            top += PANEL
    if not panels:
        return None
    note = f"Each name with the seconds until {judged.target:g} %; mean of the seeds, time axis logarithmic. {judged.note}"
    width = RIGHT + 100 + LETTER * max(len(name) for drawn in judged.drawn.values() for name in drawn)
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + 22}">', STYLE, *panels,
                      f'<text x="46" y="{top + 12}">{note}</text>', "</svg>"]) + "\n"


def gpt_over_time(times, found, done):
    """Seconds until the rows that are drawn for the GPT reach its target, and how far their losses are from
    DistributedDataParallel's on the same seeds."""
    losses = {}
    for run, result in GPT.of(done).items():
        losses.setdefault((run.method, run.coverage), {})[run.seed] = result["test_loss"][-1]
    reference = curves_of(TUNED, 2.0, losses)
    lines = []
    for name in dict.fromkeys(name for drawn in GPT.drawn.values() for name in drawn):
        row = [name]
        for rate in PICTURED:
            line, own = times[GPT.job, rate].get(name, {}), curves_of(name, rate, losses) or {}
            reach = seconds_to_target(name, rate, line, found, GPT.target) if own and "compared_ms" in line else None
            row.append("" if reach is None else seconds_told(reach))
            apart = [loss - reference[seed] for seed, loss in own.items()]
            row.append(f"{statistics.mean(apart):+.3f} ({len(apart)})" if apart else "")
        lines.append(row)
    return markdown(["", *(text for rate in PICTURED for text in (f"to {GPT.target:g} % at {rate:g}", "loss"))], lines)


NUMBERS = ("no", "one", "two", "three", "four", "five", "six")


def seeds_told(found):
    """How many trainings the accuracies of README.md are the mean of: most rows', then the rows of more or fewer."""
    count = {(name, rate): len(curves_of(name, rate, found)) for name in SHOWN for rate in PICTURED}
    usual = statistics.mode(count.values())
    others = {}
    for (name, rate), number in count.items():
        if number != usual:
            others.setdefault((name, number), []).append(f"{rate:g}")
    told = [f"{NUMBERS[number]} for {name}" + ("" if len(rates) == len(PICTURED) else f" at {' and '.join(rates)}")
            for (name, number), rates in others.items()]
    return f"{NUMBERS[usual]} seeds" + (f" ({', '.join(told)})" if told else "")


def first_screen(times, found):
    """Seconds to its target and accuracies of the rows that README.md shows."""
    slow = " and ".join(f"{rate:g}" for rate in PICTURED)
    told = (f"Seconds of training until a small network reaches {SMALL.target:g} % test accuracy on Fashion-MNIST, and its "
            f"test accuracy after {NUMBERS[accuracy.Run.epochs]} epochs.\nTwo workers; communication takes {slow} times as "
            "long as the computation "
            f"(coverage rates {slow}).\nThe time is the number of iterations that a "
            "training needs, times the measured time of an iteration, and where the workers' models differ, the time to\n"
            f"average them once: the median of {seeds_told(found)}. The accuracy is their mean at the end.")
    lines = []
    for name in SHOWN:
        row = [name]
        for rate in PICTURED:
            reach = seconds_to_target(name, rate, times[SMALL.job, rate][name], found)
            row += [seconds_told(reach), final_accuracy(name, rate, found, 1) + " %"]
        lines.append(row)
    return told + "\n\n" + markdown(["", *(text for rate in PICTURED for text in (f"time at {rate:g}", "accuracy"))],
                                    lines)


def pictures(times, found):
    """{page of docs/: SVG}."""
    return {SMALL.picture: picture(timed(SHOWN_TIMES), found), GPT.picture: picture(times, curves(ACCURACIES, GPT), GPT)}


def measured():
    """What timed() and curves() find in docs/results/."""
    return timed(DOCS / "results/table.jsonl"), curves(ACCURACIES)


def sections(times, found):
    """[(page, name of its section, what stands there)]."""
    return [(DOCS / "results/schemes.md", "every scheme", page(times, found) or "Not measured yet: `make bench`."),
            (DOCS / "performance.md", "in short", in_short(times, found) + "\n\n" + in_words(times)),
            (DOCS / "choosing.md", "what each gains", gains(times)),
            (DOCS / "performance.md", "accuracy", kept_accuracy(accuracy.done_runs(ACCURACIES))),
            (DOCS / "performance.md", "predictions", predictions(times)),
            (DOCS / "results/accuracy.md", "the GPT over time",
             gpt_over_time(times, curves(ACCURACIES, GPT), accuracy.done_runs(ACCURACIES))),
            (DOCS / "results/method.md", "the first screen again",
             first_screen(timed(SHOWN_AGAIN[0]), curves(SHOWN_AGAIN[1]))),
            (DOCS / "results/schemes.md", "in the job", measured_in_the_job() + "\n\n" + predicted_and_repeated()),
            (DOCS.parent / "README.md", "first screen", first_screen(timed(SHOWN_TIMES), found))]


def main():
    times, found = measured()
    for section in sections(times, found):
        replace_section(*section)
    for name, drawn in pictures(times, found).items():
        (DOCS / name).write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
