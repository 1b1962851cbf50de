"""Writes the tables and pictures of real training into the pages of docs/results/ from what was measured there.

    .venv/bin/python bench/training_tables.py
"""

import json
import statistics
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
LINKS = ("shaped", "emulated")
ON_TEXT = ("gpt", "lora", "large gpt")  # jobs that are judged by their loss
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}
# The jobs of the summary: what it calls them, and their job and schedule in the results.
SUMMED_UP = {"convolutional network": ("small", "constant"), "vision transformer": ("vit", "cosine"),
             "ResNet-18": ("resnet18", "cosine"), "low-rank adapters of a GPT": ("lora", "cosine"),
             "small GPT": ("gpt", "cosine"),
             "small GPT, clipped, twice the rate": ("gpt", "cosine from twice the rate, clipped"),
             "small GPT, constant rate": ("gpt", "constant"), "GPT ten times as large": ("large gpt", "cosine"),
             "the same, twice the rate": ("large gpt", "cosine from twice the rate")}
LATE = "delayed_averaging compressor="
# {column: [methods that it may show, the first that was run, and coverage rate]}
OURS = {"8-bit gradients": [("ddp compressor=int8", 2.0)],
        **{f"late, {title}, {rate}": [(f"{LATE}{compressor}", float(rate))]
           for title, compressor in (("`auto`", "auto"), ("4 bits", "int4")) for rate in (2, 16, 64)},
        "on time, 2": [("dreamddp period=1 forward_overlap=only compressor=int4", 2.0)],
        "on time, 16": [("dreamddp period=2 forward_overlap=only compressor=ef_signsgd", 16.0)],
        "on time, 64": [("dreamddp period=3 forward_overlap=only compressor=ef_signsgd", 64.0),
                        ("dreamddp forward_overlap=only compressor=ef_signsgd", 64.0)]}
RECOMMENDED = {title.replace("`auto`, ", ""): methods for title, methods in OURS.items() if "4 bits" not in title}
OTHERS = {"fp16 hook": [("DDP (fp16 hook)", 2.0)], "PowerSGD hook": [("DDP (PowerSGD hook)", 2.0)],
          "Streaming DiLoCo, 2": [("Streaming DiLoCo", 2.0)], "Streaming DiLoCo, 64": [("Streaming DiLoCo", 64.0)],
          "post-local SGD, 64": [("post-local SGD", 64.0)]}
AIM = {"points": 0.3, "nats": 0.01}  # what a recommended method may lose


def load(results):
    """{(links, coverage rate asked for): the demo's results}."""
    found = {}
    for links in LINKS:
        for path in results.glob(f"training-{links}-*.json"):
            found[links, float(path.stem.rsplit("-", 1)[1])] = json.loads(path.read_text())
    return dict(sorted(found.items()))


def markdown(header, rows):
    """A markdown table; all columns but the first are aligned to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)] + rows
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def speed_tables(found):
    """One table for each comparison: time, what communication cost, ratios, accuracy."""
    parts = []
    for (links, coverage), result in found.items():
        setting = result["setting"]
        rows = []
        for row in result["contestants"]:
            median, low, high = row["speedup_over_default"]
            communicates = row["accuracy"] is not None
            rows.append([row["name"], f"{row['measured_ms']:.0f}", f"{row['over_compute']:.2f}",
                         f"{median:.2f} ({low:.2f} - {high:.2f})" if communicates else "",
                         f"{row['speedup_over_tuned'][0]:.2f}" if communicates else "",
                         f"{row['accuracy']:.1f}" if communicates else ""])
        parts.append(f"**{links.capitalize()} link, coverage rate {coverage:g}** "
                     f"({setting['bits_per_second'] / 1e6:.0f} Mb/s; measured {setting['coverage_rate']:.2f}; "
                     f"compute {setting['compute_ms']:.0f} ms; accuracy after {setting['samples']} samples)\n\n"
                     + markdown(["", "ms per iteration", "over compute alone", "times DDP default (spread)", "times DDP tuned",
                                 "test accuracy, %"], rows))
    return "\n\n".join(parts)


def prediction_errors(found, links):
    """[(coverage rate, scheme, relative error)] on one kind of links."""
    return [(coverage, row["name"], row["prediction_error"]) for (kind, coverage), result in found.items() if kind == links
            for row in result["contestants"] if "prediction_error" in row]


def prediction_table(found):
    """Predicted against measured iteration time: errors in percent, mean of magnitudes, and the worst."""
    parts = []
    for links in LINKS:
        errors = prediction_errors(found, links)
        if not errors:
            continue
        rates = sorted({rate for rate, _, _ in errors})
        by_place = {(rate, name): error for rate, name, error in errors}
        rows = [[name] + [f"{100 * by_place[rate, name]:+.1f}" if (rate, name) in by_place else "" for rate in rates]
                for name in dict.fromkeys(name for _, name, _ in errors)]
        worst = max(errors, key=lambda entry: abs(entry[2]))
        mean = statistics.mean(abs(error) for _, _, error in errors)
        parts.append(f"**{links.capitalize()} links**: mean error {100 * mean:.1f}%, "
                     f"worst {100 * worst[2]:+.1f}% ({worst[1]} at coverage rate {worst[0]:g})\n\n"
                     + markdown(["predicted / measured - 1, %"] + [f"coverage rate {rate:g}" for rate in rates], rows))
    return "\n\n".join(parts)


def accuracy_groups(path, job, schedule="constant"):
    """{(workers, optimizer, method, coverage rate): {seed: result}}, sorted; first DistributedDataParallel, whose rate is 0:
    its accuracy depends on none."""
    groups = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        result = json.loads(line)
        run = {"job": "small", "schedule": "constant"} | result["run"]
        if (run["job"], run["schedule"]) != (job, schedule):
            continue
        key = run["workers"], run["optimizer"], run["method"], 0.0 if run["method"] == "ddp" else run["coverage"]
        groups.setdefault(key, {})[run["seed"]] = result
    order = list(OPTIMIZERS)
    return dict(sorted(groups.items(), key=lambda entry: (entry[0][0], order.index(entry[0][1]), entry[0][2] != "ddp",
                                                          entry[0][2:])))


def apart_from(seeds, reference, measure):
    """How far a method is from DistributedDataParallel in the end, for each seed that {seed: result} of both have."""
    return [result[measure][-1] - reference[seed][measure][-1] for seed, result in seeds.items() if seed in reference]


def accuracy_table(path, job="small", schedule="constant"):
    """Mean and single seeds of the test accuracy after the last epoch, or of the loss on text, for each method, optimizer,
    number of workers and coverage rate."""
    measure, title, digits = (("test_loss", "mean test loss, nats", 3) if job in ON_TEXT else
                              ("accuracy", "mean accuracy, %", 2))
    groups, rows = accuracy_groups(path, job, schedule), []
    for (workers, optimizer, method, coverage), seeds in groups.items():
        final = [seeds[seed][measure][-1] for seed in sorted(seeds)]
        reference = groups.get((workers, optimizer, "ddp", 0.0), {})
        apart = apart_from(seeds, reference, measure)
        if chosen := next(iter(seeds.values())).get("chosen"):
            method = f"{method} ({chosen})"
        rows.append([str(workers), optimizer, method, f"{coverage:g}" if coverage else "",
                     f"{statistics.mean(final):.{digits}f}", " ".join(f"{value:.{digits}f}" for value in final),
                     f"{statistics.mean(apart):+.{digits}f}" if apart and method != "ddp" else "",
                     f"{max(result['spread'] for result in seeds.values()):.2g}" if method != "ddp" else ""])
    return markdown(["workers", "optimizer", "method", "coverage rate", title, "seeds", "minus DDP",
                     "spread between workers"], rows)


def lost(job, seeds, reference):
    """(points or nats that a method lost in the mean to DistributedDataParallel on the same seeds, their number) of
    {seed: result} of both; None without such seeds."""
    measure, sign = ("test_loss", 1) if job in ON_TEXT else ("accuracy", -1)
    apart = apart_from(seeds, reference, measure)
    return (sign * statistics.mean(apart), len(apart)) if apart else None


def summary_table(path, columns):
    """What each of the `columns`, as OURS, loses in each job of SUMMED_UP: bold if more than AIM, with the number of seeds if
    it isn't three."""
    lines = []
    for title, (job, schedule) in SUMMED_UP.items():
        unit, digits = ("nats", 3) if job in ON_TEXT else ("points", 2)
        groups = accuracy_groups(path, job, schedule)
        for workers, optimizer in dict.fromkeys(key[:2] for key in groups):
            reference, cells = groups.get((workers, optimizer, "ddp", 0.0), {}), []
            for methods in columns.values():
                found = next((groups[key] for method in methods if (key := (workers, optimizer, *method)) in groups), {})
                value = lost(job, found, reference)
                if value is None:
                    cells.append("")
                    continue
                amount = round(value[0], digits) + 0.0  # not -0.0
                text = f"**{amount:.{digits}f}**" if amount > AIM[unit] else f"{amount:.{digits}f}"
                cells.append(text if value[1] == 3 else f"{text} ({value[1]})")
            if any(cells):
                lines.append([title, OPTIMIZERS[optimizer], str(workers), unit, *cells])
    return markdown(["job", "optimizer", "workers", "lost in", *columns], lines)


def scheme_accuracy_table(path, scheme):
    """Points above or below DistributedDataParallel on the same seeds: a row for each method of a scheme and coverage rate."""
    groups = accuracy_groups(path, "small")
    own = [key for key in groups if key[2].split()[0] == scheme]
    columns = list(dict.fromkeys(key[:2] for key in groups if key in own))

    def final(key):
        return {seed: result["accuracy"][-1] for seed, result in groups[key].items()}

    references = {column: final((*column, "ddp", 0.0)) for column in columns}
    rows = [["DistributedDataParallel, %", *(f"{statistics.mean(each.values()):.2f}" for each in references.values())]]
    for method, rate in sorted({key[2:] for key in own}):
        cells = []
        for column, reference in references.items():
            mine = final((*column, method, rate)) if (*column, method, rate) in own else {}
            cells.append(f"{statistics.mean(mine[seed] - reference[seed] for seed in mine):+.2f}" if mine else "")
        rows.append([f"`{method}`, coverage rate {rate:g}", *cells])
    return markdown(["", *(f"{workers}, {OPTIMIZERS[optimizer]}" for workers, optimizer in columns)], rows)


def overhead_table(path):
    """What the engine costs where nothing is transported; empty if it was not measured."""
    if not path.exists():
        return ""
    result = json.loads(path.read_text())
    rows = []
    for method in result["methods"]:
        middle, low, high = method["over_compute"]
        predicted = f"{method['predicted_ms']:.0f}" if method["predicted_ms"] else ""
        rows.append([method["name"], f"{method['measured_ms']:.1f}", predicted, f"{middle:.3f} ({low:.3f} - {high:.3f})"])
    return (f"Coverage rate {result['coverage_rate']:g}, {result['rounds']} rounds of {result['iterations']} iterations.\n\n"
            + markdown(["", "ms per iteration", "predicted", "times compute alone (spread)"], rows))


def ring_table(path):
    """(Reduce-scatter + all-gather) / all-reduce: one row for each number of workers and rate, one column for each size."""
    rows = json.loads(path.read_text())
    sizes = sorted({row["kilobytes"] for row in rows})
    lines = []
    for workers, mbps, computing in sorted({(row["workers"], row["mbps"], row["computing"]) for row in rows}):
        cells = {row["kilobytes"]: row["ratio"] for row in rows
                 if (row["workers"], row["mbps"], row["computing"]) == (workers, mbps, computing)}
        lines.append([f"{workers} workers, {mbps:g} Mb/s{', computing' if computing else ''}"]
                     + ["{:.2f} ({:.2f} - {:.2f})".format(*cells[size]) if size in cells else "" for size in sizes])
    return markdown([""] + [f"{size} KB" if size < 1024 else f"{size // 1024} MB" for size in sizes], lines)


def partial_steps_table(path):
    return markdown(["", "tensors", "whole step, ms", "parts", "all parts, ms", "parts / whole (quartiles)"],
                    [[f"{row['network']}, {row['optimizer']}", str(row["tensors"]), f"{row['whole_ms']:.1f}",
                      str(row["parts"]), f"{row['parts_ms']:.1f}", "{:.2f} ({:.2f} - {:.2f})".format(*row["ratio"])]
                     for row in json.loads(path.read_text())])


def compiled_table(path):
    """Training under torch.compile; empty if it was not measured."""
    if not path.exists():
        return ""
    result = json.loads(path.read_text())
    rows = [[row["name"], str(row["graphs"]), *(f"{ms:.0f}" for ms in row["ms"]),
             *("{:.2f} ({:.2f} - {:.2f})".format(*row[ratio]) for ratio in ("gain", "over_alone", "times_ddp"))]
            for row in result["rows"]]
    return (f"Coverage rate {result['coverage_rate']:g}, {result['parameter_bytes'] / 1e6:.1f} MB of parameters, "
            f"{result['rounds']} rounds of {result['iterations']} iterations.\n\n"
            + markdown(["", "graphs", "ms, plain Python", "ms, compiled", "plain / compiled (spread)",
                        "compiled: times compute alone", "times as fast as DDP"], rows))


def with_section(page, name, content):
    """The text of the file `page` with what stands between the section's markers replaced. Errors: ValueError without them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, found, rest = page.read_text().partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page} lacks the markers '{begin}' and '{end}'")
    return f"{head}{begin}\n\n{content}\n\n{end}{tail}"


def replace_section(page, name, content):
    """Writes with_section() into the page."""
    page.write_text(with_section(page, name, content))


COLORS = ("#888888", "#c0504d", "#e59866", "#5b8db8", "#4f81bd", "#2e5c8a", "#77933c", "#4e6128")


def speed_chart(found, links):
    """Iteration time over compute alone, at each coverage rate, as SVG; predicted times are black marks."""
    chosen = {coverage: result for (kind, coverage), result in found.items() if kind == links}
    names = [row["name"].split(" (tuned")[0] + (" (tuned)" if "tuned" in row["name"] else "")
             for row in next(iter(chosen.values()))["contestants"]][1:]
    top = max(row["over_compute"] for result in chosen.values() for row in result["contestants"])
    width, height, left, base = 960, 420, 60, 340
    group = (width - left - 20) / len(chosen)
    bar = group / (len(names) + 1.5)
    scale = (base - 30) / top

    def text(x, y, content, anchor="middle", size=12):
        return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{content}</text>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             text(left, 18, f"Iteration time over compute alone, {links} link (black: predicted)", "start", 14)]
    for step in range(int(top) + 1):
        y = base - step * scale
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                     + text(left - 8, y + 4, step, "end"))
    for place, (coverage, result) in enumerate(chosen.items()):
        origin = left + place * group + bar * 0.75
        compute = result["contestants"][0]["measured_ms"]
        parts.append(text(origin + bar * len(names) / 2, base + 18, f"coverage rate {coverage:g}"))
        for index, row in enumerate(result["contestants"][1:]):
            x, y = origin + index * bar, base - row["over_compute"] * scale
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar * 0.9:.1f}" height="{base - y:.1f}" '
                         f'fill="{COLORS[index + 1]}"/>')
            if "predicted_ms" in row:
                y = base - row["predicted_ms"] / compute * scale
                parts.append(f'<line x1="{x:.1f}" x2="{x + bar * 0.9:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
                             'stroke="black" stroke-width="2"/>')
    for index, name in enumerate(names):
        x, y = left + (index % 4) * 220, base + 42 + 20 * (index // 4)
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{COLORS[index + 1]}"/>'
                     + text(x + 18, y, name, "start"))
    return "\n".join(parts + ["</svg>"]) + "\n"


def sections(found):
    """[(page, name of its section, what stands there)]; `found`: what load() returns of docs/results/."""
    results = DOCS / "results"
    schemes = [(DOCS / f"schemes/{name}.md", "accuracy", scheme_accuracy_table(results / "accuracy.jsonl", name))
               for name in ("deft", "covap", "local_sgd", "partial_sgd", "dreamddp", "delayed_averaging")]
    pictures = [f"![Iteration time on {links} links](training-{links}.svg)" for links in pictured(found)]
    recommended = [(DOCS / "choosing.md", "what is recommended", summary_table(results / "accuracy.jsonl", RECOMMENDED))]
    return schemes + recommended + [(results / f"{page}.md", name, content) for page, name, content in (
        ("training", "training speed", "\n\n".join([speed_tables(found)] + pictures)),
        ("training", "prediction", prediction_table(found)),
        ("engine", "engine cost", overhead_table(results / "overhead.json")),
        ("accuracy", "ours in short", summary_table(results / "accuracy.jsonl", OURS)),
        ("accuracy", "others in short", summary_table(results / "accuracy.jsonl", OTHERS)),
        ("accuracy", "training accuracy", accuracy_table(results / "accuracy.jsonl")),
        ("accuracy", "gpt accuracy", accuracy_table(results / "accuracy.jsonl", "gpt")),
        *(("accuracy", f"{job} at a falling rate", accuracy_table(results / "accuracy.jsonl", job, "cosine"))
          for job in ("vit", "resnet18", "lora", "gpt", "large gpt")),
        ("accuracy", "clipped gpt at twice the rate",
         accuracy_table(results / "accuracy.jsonl", "gpt", "cosine from twice the rate, clipped")),
        ("accuracy", "large gpt at twice the rate",
         accuracy_table(results / "accuracy.jsonl", "large gpt", "cosine from twice the rate")),
        ("engine", "ring", ring_table(results / "ring.json")),
        ("engine", "partial steps", partial_steps_table(results / "partial_steps.json")),
        ("engine", "compiled", compiled_table(results / "compiled.json")))]


def pictured(found):
    """The kinds of links that were measured."""
    return [links for links in LINKS if any(kind == links for kind, _ in found)]


def main():
    found = load(DOCS / "results")
    for links in pictured(found):
        (DOCS / f"results/training-{links}.svg").write_text(speed_chart(found, links))
    for section in sections(found):
        replace_section(*section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
