#!/usr/bin/env python3
"""Draws docs/pictures/regions.svg: which scheme `auto` takes, and what that gains, by how slow the link is and how much it
costs to start a message. ResNet-50, planned by the gradweave command; two minutes."""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from svg import COLORS, STYLE  # noqa: E402

WORKLOAD = ROOT / "examples/workloads/resnet50.json"
COVERAGE = [2 ** (step / 2) for step in range(-4, 13)]  # time to send all once over compute
STARTUP = [10 ** (step / 2) for step in range(-10, -1)]  # of one message, over compute
PANELS = {"exact": "Nothing may change (allow=exact, the default)",
          "exact+corrected": "Averages may come late and be corrected for (allow=exact+corrected)"}
WIDTH, HEIGHT, LEFT, TOP, BETWEEN = 46, 26, 76, 58, 96
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def run(command, *arguments):
    done = subprocess.run([str(command), *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gradweave {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def choose(command, folder, allow, coverage, startup):
    """(scheme, times ddp)"""
    layers = json.loads(WORKLOAD.read_text())["layers"]
    compute_us = sum(layer["forward_us"] + layer["backward_us"] for layer in layers)
    size = sum(tensor["numel"] * BYTES[tensor["dtype"]] for layer in layers for tensor in layer["tensors"])
    link = {"name": "net", "startup_us": round(startup * compute_us, 3), "us_per_byte": round(coverage * compute_us / size, 9)}
    cluster = folder / f"{coverage}-{startup}.json"
    workers = {"workers": 8, "workers_per_node": 1, "startup_growth": "linear"}
    cluster.write_text(json.dumps({"version": 1, **workers, "links": [link]}))
    common = ["--workload", WORKLOAD, "--cluster", cluster, "--json"]
    found = run(command, "plan", *common, "--scheme", "auto", "--set", f"allow={allow}")["finding"]["chosen"]
    plan = folder / f"{coverage}-{startup}-{allow}-plan.json"
    run(command, "plan", *common, "--scheme", "ddp", "-o", plan)
    return found["scheme"], run(command, "simulate", "--plan", plan, *common)["iteration_us"] / found["iteration_us"]


def draw(cells):
    """cells: {allow: rows of (scheme, times ddp), from the dearest start-up down}."""
    schemes = sorted({scheme for rows in cells.values() for row in rows for scheme, _ in row})
    color = dict(zip(schemes, COLORS))
    width = LEFT + WIDTH * len(COVERAGE) + 16
    height = len(cells) * (HEIGHT * len(STARTUP) + BETWEEN) + 40
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', STYLE]
    for number, (allow, rows) in enumerate(cells.items()):
        top = TOP + number * (HEIGHT * len(STARTUP) + BETWEEN)
        bottom = top + HEIGHT * len(rows)
        parts.append(f'<text class="title" x="{LEFT}" y="{top - 34}">{PANELS[allow]}</text>')
        parts.append(f'<text x="{LEFT}" y="{top - 16}">up: start-up of a message, share of the compute of an iteration</text>')
        for r, row in enumerate(rows):
            y = top + r * HEIGHT
            share = f"{100 * STARTUP[-1 - r]:.2g}%"
            parts.append(f'<text x="{LEFT - 8}" y="{y + 18}" text-anchor="end">{share}</text>')
            for c, (scheme, gain) in enumerate(row):
                x = LEFT + c * WIDTH
                opacity = 0.15 if gain < 1.02 else 0.55
                parts.append(f'<rect x="{x}" y="{y}" width="{WIDTH - 1}" height="{HEIGHT - 1}" fill="{color[scheme]}" '
                             f'fill-opacity="{opacity}"><title>{scheme}, {gain:.2f} times ddp</title></rect>')
                parts.append(f'<text x="{x + WIDTH / 2}" y="{y + 17}" text-anchor="middle">{gain:.2f}</text>')
        for c in range(0, len(COVERAGE), 2):
            parts.append(f'<text x="{LEFT + (c + 0.5) * WIDTH}" y="{bottom + 18}" text-anchor="middle">{COVERAGE[c]:g}</text>')
        parts.append(f'<text x="{LEFT + WIDTH * len(COVERAGE)}" y="{bottom + 36}" text-anchor="end">coverage rate</text>')
    x = LEFT
    for scheme in schemes:
        parts.append(f'<rect x="{x}" y="{height - 28}" width="14" height="14" fill="{color[scheme]}" fill-opacity="0.55"/>')
        parts.append(f'<text x="{x + 20}" y="{height - 16}">{scheme}</text>')
        x += 34 + 8 * len(scheme)
    return "\n".join([*parts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", type=Path, default=ROOT / "build/gradweave")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/pictures/regions.svg")
    options = parser.parse_args()
    cells = {}
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:
        for allow in PANELS:
            points = [(coverage, startup) for startup in reversed(STARTUP) for coverage in COVERAGE]
            found = list(pool.map(lambda point: choose(options.command, Path(scratch), allow, *point), points))
            cells[allow] = [found[row:row + len(COVERAGE)] for row in range(0, len(found), len(COVERAGE))]
            print(f"{allow}: {len(found)} clusters", file=sys.stderr)
    options.output.write_text(draw(cells))


if __name__ == "__main__":
    main()
