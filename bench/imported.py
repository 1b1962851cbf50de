"""Plans from an imported trace beside plans from the live profile of the same job: predicted iteration times.

Turns with Gradweave's profiler and with PyTorch's alternate in one process; the traces of all turns are imported as one rank.
Results are one JSON file, docs/results/imported.json; exit code 1 if a prediction is off by more than 5 %.

    .venv/bin/python bench/imported.py            # about a minute
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from gradweave import profiling
from gradweave.lab import jobs, training

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs/results/imported.json"
COMMAND = ROOT / "build/gradweave"
LIMIT = 0.05
SCHEMES = ("ddp", "dear", "us_byte", "delayed_averaging")
LINK = {"name": "link", "startup_us": 100}


def both(name, turns, iterations, folder):
    """(live workload, imported workload) of the job `name`."""
    kind = jobs.KINDS[name]
    job = training.recipe_of(name).make(kind.load("train"))

    def step():
        inputs, targets = next(job.batches)
        job.optimizer.zero_grad()
        job.loss(job.model(inputs), targets).backward()
        job.optimizer.step()

    for _ in range(3):
        step()
    with profiling.ForwardOrder(job.model) as order:
        step()
    found, traces = profiling.Profile(job.model, order.layers(), turns * iterations), []
    for turn in range(turns):
        with found:
            for _ in range(iterations):
                step()
                found.iteration_ended()
        traces.append(folder / f"{name}-{turn}.json")
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True,
                     schedule=schedule(wait=0, warmup=1, active=iterations),
                     on_trace_ready=lambda done: done.export_chrome_trace(str(traces[-1]))) as profiler:
            profiler.add_metadata_json("distributedInfo", '{"rank": 0}')
            for _ in range(1 + iterations):
                step()
                profiler.step()
    live, _ = found.workload(name)
    done = subprocess.run([COMMAND, "import", "kineto", *traces, "--name", name], check=True, capture_output=True, text=True)
    return live, json.loads(done.stdout)


def predictions(workload, cluster, folder):
    """{scheme: iteration time in microseconds}."""
    paths = []
    for label, content in (("workload", workload), ("cluster", cluster)):
        paths.append(folder / f"{label}.json")
        paths[-1].write_text(json.dumps(content))
    done = subprocess.run([COMMAND, "compare", "--workload", paths[0], "--cluster", paths[1], "--schemes", ",".join(SCHEMES),
                           "--json"], check=True, capture_output=True, text=True)
    return {row["name"]: row["iteration_us"] for row in json.loads(done.stdout)["schemes"]}


def compared(name, turns, iterations, folder):
    """The job's row: ratios of imported over live."""
    live, imported = both(name, turns, iterations, folder)
    sizes = [[[tensor["numel"] for tensor in layer["tensors"]] for layer in each["layers"]] for each in (live, imported)]
    assert sizes[0] == sizes[1], name
    times = {key: [sum(layer[key] for layer in each["layers"]) for each in (live, imported)]
             for key in ("forward_us", "backward_us")}
    # A link on which communication takes as long as compute: where plans differ most.
    compute, size = sum(live_us for live_us, _ in times.values()), 4 * sum(map(sum, sizes[0]))
    cluster = {"version": 1, "workers": 4, "links": [{**LINK, "us_per_byte": compute / size}]}
    mine, theirs = predictions(imported, cluster, folder), predictions(live, cluster, folder)
    return {"forward": times["forward_us"][1] / times["forward_us"][0],
            "backward": times["backward_us"][1] / times["backward_us"][0],
            **{scheme: mine[scheme] / theirs[scheme] for scheme in SCHEMES}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=4, help="in a turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name in ("wide", "gpt", "resnet18"):
        with tempfile.TemporaryDirectory() as folder:
            row = compared(name, options.turns, options.iterations, Path(folder))
        rows[name] = {key: round(ratio, 4) for key, ratio in row.items()}
        print(name, rows[name])
    results = {"turns": options.turns, "iterations": options.iterations, "imported over live": rows}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(abs(row[scheme] - 1) > LIMIT for row in rows.values() for scheme in SCHEMES))


if __name__ == "__main__":
    sys.exit(main())
