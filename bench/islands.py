"""Messages between two processes over a line with a rate and a delay, by the transport between islands (`src/islands`) and by
Gloo's send and receive: throughput, processor time of both sides, time to end what is under way.

The line is a process that carries packets between two network namespaces (bench/islands/line.cc). Both take turns. Results
are one JSON file, docs/results/islands.json. `--also NAME=COMMAND` measures another program of the same kind beside them.

    cmake --preset release -DGRADWEAVE_BENCH=ON && cmake --build build --target islands_bench
    .venv/bin/python bench/islands.py            # about 6 minutes, as root
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gradweave.lab import hosts
from training_tables import markdown, replace_section

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "build/bench/islands_bench"
RESULTS = ROOT / "docs/results/islands.json"
PAGE = RESULTS.with_suffix(".md")
ADDRESS = "10.232.0.1"
MEGABYTES = {100: 16, 1000: 64, 10000: 256}
LINES = (1, 4, 16)


def gloo(what, megabytes, count):
    """In each process: as `islands_bench WHAT`."""
    import torch
    from torch import distributed

    sends, used = what.endswith("send"), time.process_time
    os.environ.update(GLOO_SOCKET_IFNAME="far0", MASTER_ADDR=ADDRESS, MASTER_PORT="29600")
    distributed.init_process_group("gloo", rank=int(sends), world_size=2)
    buffer = torch.ones(megabytes << 18)

    def start(tag):
        return distributed.isend(buffer, 0, tag=tag) if sends else distributed.irecv(buffer, 1, tag=tag)

    start(0).wait()
    begin, before = time.monotonic(), used()
    for number in range(count):
        start(number + 1).wait()
    distributed.barrier()  # a send is over once it is in the kernel's hands
    print(json.dumps({"seconds": time.monotonic() - begin, "processor": used() - before}), flush=True)
    os._exit(0)


def pair(made, commands):
    """What the two sides print, that of the sender last; None for one that failed."""
    sides = []
    for rank, command in enumerate(commands):
        sides.append(subprocess.Popen(made.inside(rank) + command, stdout=subprocess.PIPE, text=True))
        time.sleep(0.1)
    outputs = []
    for side in sides:
        try:
            outputs.append(side.communicate(timeout=90)[0])
        except subprocess.TimeoutExpired:
            side.kill()
            outputs.append("")
    return [json.loads(output) if output.startswith("{") else None for output in outputs]


def commands_of(kind, what, key, megabytes, count, also):
    lines = {f"islands, {lines} connections": lines for lines in LINES}
    for side in ("receive", "send"):
        word = f"end-{side}" if what == "end" else side
        if kind in lines:
            yield [str(BENCH), word, key, f"{ADDRESS}:29700", str(lines[kind]), str(megabytes), str(count)]
        elif kind == "Gloo":
            yield [sys.executable, __file__, "--gloo", word, str(megabytes), str(count)]
        else:
            yield [*also[kind].split(), word, f"{ADDRESS}:29701", str(megabytes), str(count)]


def measure(options, key):
    also = dict(entry.split("=", 1) for entry in options.also)
    kinds = [*(f"islands, {lines} connections" for lines in LINES), "Gloo", *also]
    rows = []
    for mbps in options.mbps:
        for round_trip_ms in options.round_trip_ms:
            with hosts.Hosts(2) as made:
                line = subprocess.Popen([str(BENCH), "line", *(str(made.process(rank)) for rank in range(2)), str(mbps),
                                         str(round_trip_ms / 2)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                line.stdout.readline()
                for kind in kinds:
                    megabytes = MEGABYTES[mbps]
                    carried = pair(made, list(commands_of(kind, "carry", key, megabytes, 1, also)))
                    # Python can't end an operation of Gloo; in C++ Work::abort() does.
                    ended = [None, None]
                    if kind != "Gloo":
                        ended = pair(made, list(commands_of(kind, "end", key, megabytes, 1, also)))
                    row = {"mbps": mbps, "round_trip_ms": round_trip_ms, "kind": kind, "of_rate": None,
                           "processor_s_per_gb": None, "end_ms": None}
                    if all(carried):
                        row["of_rate"] = round(megabytes * 8.388608 / carried[1]["seconds"] / mbps, 3)
                        row["processor_s_per_gb"] = round(sum(side["processor"] for side in carried)
                                                          / (megabytes * 1.048576e-3), 2)
                    if ended[1]:
                        row["end_ms"] = round(1e3 * (ended[1]["ended"] - ended[1]["began"]), 2)
                    rows.append(row)
                    print(row, file=sys.stderr, flush=True)
                line.stdin.close()
                line.wait()
    return rows


def table(rows, measure, form):
    """One row for each line, one column for each kind, of which the page says what it is."""
    titles = {"islands, 1 connections": "1 connection", "Gloo": "Gloo, not encrypted", "zmq": "libzmq, CURVE"}
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    lines = {}
    for row in rows:
        found = lines.setdefault(f"{row['mbps'] / 1000:g} Gb/s, {row['round_trip_ms']:g} ms", {})
        found[row["kind"]] = "" if row[measure] is None else form.format(row[measure])
    return markdown(["line", *(titles.get(kind, kind.split()[1] if kind.startswith("islands") else kind) for kind in kinds)],
                    [[line, *(found.get(kind, "") for kind in kinds)] for line, found in lines.items()])


def sections():
    rows = json.loads(RESULTS.read_text())
    return [(PAGE, "rate", table([{**row, "of_rate": 100 * row["of_rate"]} for row in rows], "of_rate", "{:.2g}")),
            (PAGE, "processor", table(rows, "processor_s_per_gb", "{:.1f}")), (PAGE, "end", table(rows, "end_ms", "{:.2f}"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbps", type=int, nargs="*", default=list(MEGABYTES))
    parser.add_argument("--round-trip-ms", type=float, nargs="*", default=[1, 100])
    parser.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--gloo", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.gloo:
        return gloo(options.gloo[0], int(options.gloo[1]), int(options.gloo[2]))
    with tempfile.TemporaryDirectory() as folder:
        key = f"{folder}/job.key"
        subprocess.run([str(BENCH), "make-key", key], check=True)
        rows = measure(options, key)
    measured = {(row["mbps"], row["round_trip_ms"]) for row in rows}
    before = json.loads(options.results.read_text()) if options.results.exists() else []
    rows += [row for row in before if (row["mbps"], row["round_trip_ms"]) not in measured]
    rows.sort(key=lambda row: (row["mbps"], row["round_trip_ms"]))
    options.results.write_text(json.dumps(rows, indent=1) + "\n")
    if options.results == RESULTS:
        for section in sections():
            replace_section(*section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
