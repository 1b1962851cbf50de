"""Training under torch.compile (inductor): DistributedDataParallel against schemes, in turns, as plain Python and compiled.

Two ranks train a residual network of normalisation, linear layers and GELU over an emulated link. A scheme cuts the compiled
model where its plan needs it; DistributedDataParallel cuts it at its buckets. Graphs are those that make one forward. Results
are one JSON file, docs/results/compiled.json.

    .venv/bin/python bench/compiled.py            # 4 minutes, and 2 more where nothing has been compiled before
"""

import argparse
import functools
import itertools
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

from gradweave import core, profiling, ranks
from gradweave.lab import demo, hosts, slow_link, training, turns

RESULTS = Path(__file__).parent.parent / "docs/results/compiled.json"
WORKERS, WIDTH, BLOCKS, BATCH = 2, 256, 8, 256
SCHEMES = ["wfbp", "ddp", "dear", "delayed_averaging"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.out = nn.Sequential(*(Block() for _ in range(BLOCKS))), nn.Linear(WIDTH, 10)

    def forward(self, x):
        return self.out(self.blocks(x))


class Inductor:
    """torch.compile's default backend, and how many graphs it was given. Contestants with one each share none."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        return compile_fx(graph, inputs)


def make_job(rank):
    torch.manual_seed(0)
    model = Network()
    generator = torch.Generator().manual_seed(rank)
    batches = [(torch.randn(BATCH, WIDTH, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator))
               for _ in range(8)]
    return training.Job(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), nn.functional.cross_entropy,
                        itertools.cycle(batches))


def contestants_of(make, setting, backends=None):
    """Compute alone, DistributedDataParallel and each scheme; compiled, by a backend each, where there is a list for them."""
    def compile_if_asked(model):
        if backends is not None:
            backends.append(Inductor())
            model.compile(backend=backends[-1])

    def job():
        made = make()
        compile_if_asked(made.model)
        return made

    found = [turns.alone(job()), turns.data_parallel(make(), "DDP (default)", setting.emulation)]
    compile_if_asked(found[1].job.model)
    for scheme in SCHEMES:
        plan = core.make_plan(setting.workload, setting.cluster, scheme)
        found.append(turns.planned(job(), scheme, setting.emulation, plan=plan, report=False))
    return found


def compile_all(contestants, backends):
    """The number of graphs of each, which are compiled from now on."""
    for contestant in contestants:
        training.train(contestant.job, 2)  # puts its plan in force, which forgets everybody's graphs
        if contestant.finish:
            contestant.finish()
    torch.compiler.reset()
    for backend in backends:
        backend.graphs = 0
    turns.run_rounds(contestants, 1, 1, demo.WARM_UP)
    for contestant in contestants:
        contestant.segment_seconds.clear()
    return [backend.graphs for backend in backends]


def measure(options):
    """On every rank: the results as data. Plans are those for the layers' times in plain Python. Collective."""
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64  # all contestants run the same code
    with ranks.joined("compiled"):
        make = functools.partial(make_job, ranks.rank())
        first = turns.alone(make())
        turns.run_segment(first, 10, 5)
        compute_s = ranks.agreed(first.segment_seconds[0])
        parameter_bytes = training.trained_bytes(first.network)
        setting = slow_link.emulated(parameter_bytes, compute_s, options.coverage, WORKERS)
        setting.workload, _ = profiling.profile(make(), "residual network", 10, 5)
        backends = []
        plain, compiled = contestants_of(make, setting), contestants_of(make, setting, backends)
        graphs = compile_all(compiled, backends)
        everybody = [each for pair in zip(plain, compiled) for each in pair]
        turns.run_rounds(everybody, options.rounds, options.iterations, demo.WARM_UP)
        assert graphs == [backend.graphs for backend in backends], "something was compiled in a turn"
        alone, parallel = compiled[:2]
        rows = [{"name": ours.name, "graphs": count, "ms": [1e3 * turns.iteration_seconds(each) for each in (python, ours)],
                 "gain": turns.ratio(ours, python), "over_alone": turns.ratio(alone, ours),
                 "times_ddp": turns.ratio(ours, parallel)} for python, ours, count in zip(plain, compiled, graphs)]
        for contestant in everybody:
            if contestant.close:
                contestant.close()
    return {"coverage_rate": options.coverage, "rounds": options.rounds, "iterations": options.iterations,
            "parameter_bytes": parameter_bytes, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coverage", type=float, default=1.0, help="of the plain Python's compute time (default: 1)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        return hosts.run_ranks([[]] * WORKERS, [sys.executable, *sys.argv], {"GLOO_SOCKET_IFNAME": "lo", **demo.MEMORY})
    result = measure(options)
    if os.environ["RANK"] == "0":
        options.results.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
