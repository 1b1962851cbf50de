"""torch.compile: the graph stays whole where the plan needs no cut, and what trains is the same."""

import pytest
import torch
from torch import nn

import ranks
from models import batch, parameters

STEPS = 6


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.linear(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(64) for _ in range(2)))
        self.out = nn.Linear(64, 5)

    def forward(self, x):
        return self.out(self.blocks(x.flatten(1)))


def make_model(seed):
    torch.manual_seed(seed)
    return Net()


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class Graphs:
    """A backend that keeps gradients in groups, as compiled backwards do, and counts the graphs."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph, inputs):
        self.count += 1
        from torch._dynamo.backends.debugging import aot_eager
        return aot_eager(graph, inputs)


def train(model, optimizer, rank):
    for step in range(STEPS):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def compiled(rank, schemes, where):
    """{scheme: (parameters, graphs, layers where the plan needs a cut)}; DistributedDataParallel's under None."""
    import gradweave
    from gradweave import core

    model, graphs = make_model(rank), Graphs()
    optimizer = make_optimizer(model)
    train(torch.compile(nn.parallel.DistributedDataParallel(model), backend=graphs), optimizer, rank)
    result = {None: (parameters(model), graphs.count, 0)}
    for scheme in schemes:
        model, graphs = make_model(rank), Graphs()
        optimizer = make_optimizer(model)
        if where == "in place":
            model.compile(backend=graphs)
        wrapped = torch.compile(model, backend=graphs) if where == "inside" else model
        called, optimizer = gradweave.wrap(wrapped, optimizer, scheme=scheme, warm_up=1, profile_iterations=2,
                                           links=[gradweave.EmulatedLink(100, 0.01)])
        if where == "outside":
            called = torch.compile(model, backend=graphs)
        train(called, optimizer, rank)
        session = wrapped.gradweave
        cuts = set(session.engine.forward_layers()) | set(core.cut_layers(session.plan, session.workload))
        gradweave.finish(wrapped)
        result[scheme] = parameters(model), graphs.count, len(cuts)
        session.close()
    return result


# One that needs no cut, one that steps in the forward, one in the backward.
FEW = ["sequential", "dear", "dreamddp"]


@pytest.mark.parametrize(("where", "names"), [("outside", FEW), ("in place", FEW), ("inside", FEW),
                                              pytest.param("outside", None, marks=pytest.mark.slow, id="every scheme")])
def test_schemes_train_the_same_and_keep_whole_graphs(where, names):
    from gradweave import core

    rows = [row for row in core.schemes() if names is None or row["name"] in names]
    first, second = ranks.run(compiled, 2, timeout=500, schemes=[row["name"] for row in rows], where=where)
    expected, _, _ = first[None]
    for row in rows:
        ours, graphs, cuts = first[row["name"]]
        for name in expected:
            assert torch.equal(ours[name], second[row["name"]][0][name]), (row["name"], name)
            if row["consistency"] == "exact":
                assert torch.equal(ours[name], expected[name]), (row["name"], name)
        assert graphs == 1 if cuts == 0 else graphs > 0, row["name"]
    assert any(cuts == 0 for _, _, cuts in first.values())
