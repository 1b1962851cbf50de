"""A trace that PyTorch's profiler makes here becomes the workload that Gradweave's own profile of the same run is."""

import json
import os
import pathlib
import subprocess

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

from gradweave import profiling

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = pathlib.Path(os.environ.get("GRADWEAVE_COMMAND", ROOT / "build" / "gradweave"))
ITERATIONS = 5


class Block(nn.Module):
    def __init__(self, width, again=False):
        super().__init__()
        self.wide, self.narrow, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)
        self.again = again

    def forward(self, inputs):
        def inner(x):
            return self.narrow(torch.relu(self.wide(x)))
        return self.norm(inputs + (checkpoint(inner, inputs, use_reentrant=False) if self.again else inner(inputs)))


class Network(nn.Module):
    """Has what makes layers hard to find: modules in modules, a shared and a frozen parameter, one module used twice."""

    def __init__(self, again=False):
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.blocks = nn.Sequential(Block(64, again), Block(64))
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.twice = nn.Linear(64, 64)
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, inputs):
        hidden = self.blocks(self.embedding(inputs))
        hidden = self.attention(hidden, hidden, hidden)[0]
        return self.head(self.twice(torch.relu(self.twice(self.frozen(hidden)))))


def recorded(model, path, passes=1, **options):
    """Trains under the profiler, which writes `path`, and under Gradweave's; returns what the latter makes of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randint(100, (16, 32))
    plan = schedule(wait=0, warmup=1, active=ITERATIONS)
    with profiling.ForwardOrder(model) as order:
        model(inputs)
    live = profiling.Profile(model, order.layers(), ITERATIONS)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan,
                 on_trace_ready=lambda done: done.export_chrome_trace(str(path)), **options) as profiler:
        for number in range(1 + ITERATIONS):
            if number == 1:
                live.start()
            optimizer.zero_grad()
            for _ in range(passes):
                nn.functional.cross_entropy(model(inputs).flatten(0, 1), inputs.flatten()).backward()
            optimizer.step()
            if number > 0:
                live.iteration_ended()
            profiler.step()
    live.stop()
    return live.workload("live")[0]


def imported(*paths, code=0):
    done = subprocess.run([COMMAND, "import", "kineto", *map(str, paths), "--json"], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def tensors(workload):
    return [[(tensor["numel"], tensor["dtype"]) for tensor in layer["tensors"]] for layer in workload["layers"]]


@pytest.mark.parametrize(("again", "passes"), [(False, 1), (True, 1), (False, 3)],
                         ids=["plain", "checkpointed", "accumulated"])
def test_modules_tensors_and_times_are_those_of_the_live_profile(again, passes, tmp_path):
    torch.manual_seed(0)
    model = Network(again)
    # The same moments of the same iterations, told by two clocks: they differ by what hooks and the profiler do between, and
    # where the machine pauses there once, by that; not every time.
    for attempt in range(5):
        live = recorded(model, tmp_path / "trace.json.gz", passes, record_shapes=True, with_stack=True)
        found = imported(tmp_path / "trace.json.gz")
        assert (found["iterations"], found["ranks"], found["damaged"], found["notes"]) == (ITERATIONS, 1, 0, [])
        workload = found["workload"]
        kinds = [layer["name"].rpartition("_")[0] for layer in workload["layers"]]
        assert kinds == ["Embedding", "Linear", "Linear", "LayerNorm", "Linear", "Linear", "LayerNorm", "MultiheadAttention",
                         "Linear"]
        assert tensors(workload) == tensors(live)
        ratios = [sum(layer[key] for layer in workload["layers"]) / sum(layer[key] for layer in live["layers"])
                  for key in ("forward_us", "backward_us")]
        if ratios == pytest.approx([1, 1], rel=0.25):
            break
    else:
        pytest.fail(f"forward and backward take {ratios} of the live profile's time, in the last of five attempts")


def test_without_stacks_layers_are_operators(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(100, 64), Block(64), nn.Linear(64, 100))
    live = recorded(model, tmp_path / "trace.json", record_shapes=True)
    found = imported(tmp_path / "trace.json")
    assert [layer["name"] for layer in found["workload"]["layers"]] == ["embedding_0", "linear_0", "linear_1", "layer_norm_0",
                                                                        "linear_2"]
    assert tensors(found["workload"]) == tensors(live)
    assert "with_stack=True" in found["notes"][0]


def test_without_shapes_the_remedy_is_named(tmp_path):
    recorded(nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100)), tmp_path / "trace.json")
    assert "record_shapes=True" in imported(tmp_path / "trace.json", code=2)


def test_a_trace_that_ends_in_the_middle_gives_what_it_has(tmp_path):
    recorded(nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100)), tmp_path / "trace.json", record_shapes=True)
    text = (tmp_path / "trace.json").read_text()
    (tmp_path / "cut.json").write_text(text[:text.rindex("AccumulateGrad")])
    found = imported(tmp_path / "cut.json")
    assert 1 <= found["iterations"] <= ITERATIONS
    assert any("cut.json ends in the middle" in note for note in found["notes"])
