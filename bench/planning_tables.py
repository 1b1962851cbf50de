"""Writes the tables and the picture of planning and simulation in docs/results/planning.md from docs/results/planning.json.

    python3 bench/planning_tables.py

Exponents are those of time ~ tensors^x, by least squares on the logarithms, from 100 tensors on.
"""

import json
import math
import sys
from pathlib import Path

from training_tables import markdown, replace_section

DOCS = Path(__file__).parent.parent / "docs"
RAW = DOCS / "results/planning.json"
PICTURE = DOCS / "pictures/planning.svg"
LINKS = ("one", "two", "fluid", "slow")
FIT_FROM = 100
LIMIT_MS = 10
AT = 1000
# A name of its own is what a scheme does with its options given; by default it searches for them.
SEARCHING = ("dear", "bytescheduler", "us_byte")


def load(path):
    """{benchmark's name without its argument: {argument: entry}}; argument None where there is none."""
    found = {}
    for entry in json.loads(path.read_text())["benchmarks"]:
        head, _, last = entry["name"].rpartition("/")
        if last.isdigit():
            found.setdefault(head, {})[int(last)] = entry
        else:
            found.setdefault(entry["name"], {})[None] = entry
    return found


def milliseconds(entry):
    """The processor time of one call."""
    return entry["cpu_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3}[entry["time_unit"]]


def exponent(times):
    """The slope of log time over log size. `times`: {size: ms}."""
    points = [(math.log(size), math.log(ms)) for size, ms in times.items() if size >= FIT_FROM]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def plan_times(found):
    """{scheme: {links: {tensors: ms}}}"""
    times = {}
    for name, sizes in found.items():
        if name.startswith("plan/"):
            _, scheme, links = name.split("/")
            times.setdefault(scheme, {})[links] = {size: milliseconds(entry) for size, entry in sorted(sizes.items())}
    return times


def plan_table(times, schemes):
    """Time for AT tensors and exponent on each kind of links."""
    rows = []
    for scheme in schemes:
        cells = [f"{times[scheme][links][AT]:.2f} ({exponent(times[scheme][links]):.2f})" for links in LINKS]
        rows.append([f"`{scheme.split(' ')[0]}`" + (", fixed" if scheme.endswith(" fixed") else "")] + cells)
    header = [f"ms for {AT} tensors (exponent)", "one link", "two links", "fluid link", "two links, coverage 100"]
    return markdown(header, rows)


def solver_table(found):
    """DreamDDP's solvers, H = 10, on one link."""
    names = ("exact", "dfs")
    rows = []
    coverages = sorted({int(name.rsplit("/", 1)[1]) if name.count("/") == 3 else tenths
                        for name in found if name.startswith("intervals/") for tenths in found[name]})
    for solver in names:
        for tenths in coverages:
            times = {int(name.split("/")[2]): milliseconds(sizes[tenths]) for name, sizes in found.items()
                     if name.startswith(f"intervals/{solver}/") and tenths in sizes}
            rows.append([f"`{solver}`, coverage {tenths / 10:g}"] + [f"{1000 * times[layers]:.0f}" for layers in sorted(times)]
                        + [f"{exponent(times):.2f}"])
    layers = sorted({int(name.split("/")[2]) for name in found if name.startswith("intervals/")})
    return markdown(["us for so many layers, H = 10"] + [str(each) for each in layers] + ["exponent"], rows)


def simulator_table(found):
    """Ops per second in the simulator's loop."""
    rows = []
    sizes = sorted({size for name, entries in found.items() if name.startswith("simulate/") for size in entries})
    for name, entries in found.items():
        if name.startswith("simulate/"):
            _, scheme, links = name.split("/")
            rows.append([f"`{scheme}`, {links}"]
                        + [f"{entries[size]['ops'] / 1e6:.1f}" if size in entries else "" for size in sizes])
    return markdown(["million ops per second, tensors:"] + [str(size) for size in sizes], rows)


def choice_table(found):
    """What compares or chooses among all schemes."""
    titles = {"choose/auto": "`auto`, 400 tensors, everything allowed",
              "compare/bert-large": "all schemes planned and simulated, BERT-Large"}
    rows = []
    for prefix, title in titles.items():
        cells = [next(iter(found[f"{prefix}/{links}"].values())) for links in LINKS]
        rows.append([title] + [f"{milliseconds(entry):.0f}" for entry in cells])
    return markdown(["ms", "one link", "two links", "fluid link", "two links, coverage 100"], rows)


def text(x, y, content, anchor="start", size=12, color="#222"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}">{content}</text>'


def spread(wanted, least, low, high):
    """Places as close to `wanted` (ascending) as a distance of `least` within [low, high] allows."""
    places = []
    for place in wanted:
        places.append(max(place, places[-1] + least if places else low))
    ceiling = high
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - least
    return places


def panel(times, links, left, title):
    """One log-log diagram of all schemes; SVG elements. Labels stand in the order of the lines' ends."""
    width, top, base, label_gap = 330, 60, 520, 15.5
    sizes = sorted({size for scheme in times.values() for size in scheme[links]})
    low = math.floor(math.log10(min(ms for scheme in times.values() for ms in scheme[links].values())))
    high = math.ceil(math.log10(max(ms for scheme in times.values() for ms in scheme[links].values())))

    def x(size):
        return left + width * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])

    def y(ms):
        return base - (base - top) * (math.log10(ms) - low) / (high - low)

    parts = [text(left, top - 16, title, size=15)]
    for power in range(low, high + 1):
        at = y(10 ** power)
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(text(left - 8, at + 4, f"{10 ** power:g} ms", "end"))
    for size in sizes:
        parts.append(f'<line x1="{x(size):.1f}" x2="{x(size):.1f}" y1="{top}" y2="{base}" stroke="#eee"/>')
        parts.append(text(x(size), base + 18, size, "middle"))
    parts.append(text(left + width / 2, base + 38, "tensors", "middle"))
    parts.append(f'<path d="M{x(AT):.1f} {y(LIMIT_MS):.1f} h-14 M{x(AT):.1f} {y(LIMIT_MS):.1f} h14" '
                 'stroke="#c00" stroke-width="3"/>')
    parts.append(text(x(AT), y(LIMIT_MS) - 6, f"limit: {LIMIT_MS} ms", "middle", 11, "#c00"))
    ends = sorted((y(scheme[links][sizes[-1]]), name) for name, scheme in times.items())
    places = spread([place for place, _ in ends], label_gap, top, base)
    for (end, name), place in zip(ends, places):
        index = list(times).index(name)
        color = f"hsl({index * 360 / len(times):.0f}, 65%, {(38, 50)[index % 2]}%)"
        dash = ' stroke-dasharray="5 3"' if name in SEARCHING else ""
        line = " ".join(f"{x(size):.1f},{y(ms):.1f}" for size, ms in times[name][links].items())
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.6"{dash}/>')
        parts.append(f'<path d="M{left + width} {end:.1f} L{left + width + 16} {place:.1f}" stroke="{color}" fill="none"/>')
        parts.append(text(left + width + 20, place + 4, f"{name} {exponent(times[name][links]):.2f}", color=color))
    return parts


def chart(times):
    """Planning time over the number of tensors, on one and on two links, as SVG."""
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1160 600" font-family="sans-serif">',
             '<rect width="1160" height="600" fill="white"/>',
             text(70, 24, "Planning time, and its exponent in the number of tensors "
                  "(dashed: schemes that search their options)", size=15)]
    parts += panel(times, "one", 70, "one link") + panel(times, "two", 650, "two links")
    return "\n".join(parts + ["</svg>"]) + "\n"


def main():
    if not RAW.exists():
        print(f"{RAW} is missing: run scripts/bench core", file=sys.stderr)
        return 1
    found = load(RAW)
    times = plan_times(found)
    PICTURE.write_text(chart(times))
    fixed = [scheme for scheme in times if scheme not in SEARCHING]
    content = "\n\n".join([plan_table(times, fixed), "Schemes that search their options unless they are given:",
                           plan_table(times, [scheme for scheme in times if scheme in SEARCHING]),
                           "![Planning time over the number of tensors](../pictures/planning.svg)", solver_table(found),
                           simulator_table(found), choice_table(found)])
    replace_section(DOCS / "results/planning.md", "planning", content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
