"""The Preserver on running jobs: what it finds in the gradients, and what `auto` then takes."""

import time

import pytest
import torch
from torch import nn

import ranks

from gradweave import core

LINK = (100.0, 0.5)  # so slow that plans which change training are much faster
ITERATIONS = 24
SMALL = 0.0005  # by so much the loss is multiplied, that squares of gradients are too small for float16
WORKERS = pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class WithLoss(nn.Sequential):
    """Two outputs on the way to the loss, as models of transformers have them."""

    def forward(self, x, y):
        logits = super().forward(x)
        return nn.functional.cross_entropy(logits, y), logits


class Complex(nn.Sequential):
    """Its parameters are complex; the squares of their gradients have hardly a real part."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.to(torch.complex64)
        for p in self.parameters():
            p.data *= (1 + 1j) / 2

    def forward(self, x):
        for layer in self[::2]:
            x = layer(x.to(torch.complex64)).abs()
        return x


class OwnRate(torch.optim.Optimizer):
    """Finds its own learning rate, as Adafactor of transformers does."""

    def __init__(self, model, **defaults):
        super().__init__(model.parameters(), defaults)

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=0.05)


def batch(rank, step, data):
    """Ten classes, each around a point of its own. `data`: "shuffled", "disjoint" (even and odd ranks see half of the classes
    each), or "whole" (all of it in each batch)."""
    generator = torch.Generator().manual_seed(7)
    centres = torch.randn(10, 20, generator=generator)
    if data == "whole":
        return centres, torch.arange(10)
    generator.manual_seed(1000 * step + rank)
    y = torch.randint(0, 10, (64,), generator=generator) if data == "shuffled" else (
        torch.randint(0, 5, (64,), generator=generator) + 5 * (rank % 2))
    return centres[y] + 0.5 * torch.randn(64, 20, generator=generator), y


def train(rank, data, make, options, scheme="auto", kind=nn.Sequential, dtype=None, **arguments):
    import gradweave

    lines = ranks.lines_told()
    model = kind(*net()).to(dtype)
    # "fast": the loss ends at 2 with gradients one update late, and at 0.005 without.
    optimizer = {"sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
                 "fast": lambda: torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
                 "slow": lambda: torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9),
                 "small": lambda: torch.optim.SGD(model.parameters(), lr=0.05 / SMALL),
                 "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.001),
                 "lr is None": lambda: OwnRate(model, lr=None), "no lr": lambda: OwnRate(model)}[make]()
    model, optimizer = gradweave.wrap(model, optimizer, scheme, links=gradweave.EmulatedLink(*LINK), options=options,
                                      profile_iterations=2, timeout=20, **arguments)
    for step in range(ITERATIONS):
        x, y = batch(rank, step, data)
        optimizer.zero_grad()
        loss = model(x, y)[0] if kind is WithLoss else nn.functional.cross_entropy(model(x.to(dtype)), y)
        (loss * (SMALL if make == "small" else 1)).backward()
        optimizer.step()
    plan = model.gradweave.plan
    gradweave.finish(model)
    model.gradweave.close()
    return plan.get("finding", {}).get("chosen", {}).get("effects", ["starter"]), lines


@WORKERS
@pytest.mark.parametrize("make, kind", [("sgd", nn.Sequential), ("adamw", nn.Sequential), ("sgd", WithLoss)])
def test_workers_with_other_data_get_an_exact_plan(make, kind, workers):
    for data, differ in (("shuffled", False), ("disjoint", True)):
        (effects, lines), *_ = ranks.run(train, workers, data=data, make=make, options={"allow": "exact+corrected"}, kind=kind)
        assert (effects == ["exact"]) == differ
        assert any("learn from different data" in line for line in lines) == differ


@pytest.mark.parametrize("make, kind, dtype", [("small", nn.Sequential, torch.float16), ("sgd", Complex, None)])
def test_other_data_are_noticed_in_gradients_of_any_dtype(make, kind, dtype):
    (effects, lines), *_ = ranks.run(train, 2, data="disjoint", make=make, options={"allow": "exact+corrected"}, kind=kind,
                                     dtype=dtype)
    assert effects == ["exact"]
    assert any("learn from different data" in line for line in lines)


@WORKERS
def test_a_delay_is_taken_only_where_the_learning_rate_bears_it(workers):
    for make, data, supported in (("fast", "shuffled", False), ("slow", "whole", True), ("adamw", "whole", False)):
        (effects, lines), *_ = ranks.run(train, workers, data=data, make=make, options={"allow": "exact+delayed"})
        if supported:  # taken, unless so many gradients are merged that it makes no progress
            assert ("delayed" in effects) != any("makes only" in line for line in lines), (effects, lines)
            assert not any("delays gradients" in line for line in lines)
        else:
            assert effects == ["exact"], lines


@WORKERS
def test_a_scheme_that_was_asked_for_is_taken_and_the_objection_told(workers):
    (_, lines), *_ = ranks.run(train, workers, data="shuffled", make="fast", options=None, scheme="deft", warm_up=10)
    assert any("the Preserver objects: the plan delays gradients" in line for line in lines)


@pytest.mark.parametrize("make", ["lr is None", "no lr"])
def test_a_learning_rate_that_is_not_known_ends_nothing(make):
    for options, expected in (({"allow": "exact+corrected"}, "corrected"), ({"allow": "exact+delayed"}, "exact")):
        (effects, lines), *_ = ranks.run(train, 2, data="shuffled", make=make, options=options)
        assert expected in effects, lines


class Bowl(nn.Module):
    """Loses 5 ms; adds a quadratic of its parameter, whose lowest point is `noise`."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(24_000))

    def forward(self, curvature, noise):
        time.sleep(0.005)
        return curvature / 2 * (self.weight - noise).square().sum()


def train_while_curvature_grows(rank, scheme):
    """From a learning rate times curvature of 0.01 to 1.3; plain training allows 2, and 1 with gradients one update late."""
    import gradweave

    lines = ranks.lines_told()
    model = nn.Sequential()
    model.bowl = Bowl()
    model.forward = model.bowl.forward
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"allow": "exact+delayed"} if scheme == "auto" else None
    model, optimizer = gradweave.wrap(model, optimizer, scheme, links=gradweave.EmulatedLink(100.0, 0.04), options=options,
                                      warm_up=12, profile_iterations=2, timeout=20)
    generator = torch.Generator().manual_seed(rank)
    plans = []
    for step in range(500):
        optimizer.zero_grad()
        model(min(1.015 ** max(0, step - 50), 130.0), 0.01 * torch.randn(24_000, generator=generator)).backward()
        optimizer.step()
        plans.append(core.demands_of(model.gradweave.plan)["delays_gradients"])
    largest = float(model.bowl.weight.detach().abs().max())
    model.gradweave.close()
    return plans[40], plans[-1], largest, lines


@WORKERS
def test_a_curvature_that_grows_in_mid_training_is_caught_before_training_diverges(workers):
    (before, after, largest, lines), *_ = ranks.run(train_while_curvature_grows, workers, scheme="auto")
    assert before and not after, lines
    assert largest < 1
    assert any("delays gradients" in line and "now in force" in line for line in lines)
    (before, after, largest, lines), *_ = ranks.run(train_while_curvature_grows, workers, scheme="deft")
    assert before and after
    assert not largest < 100
    assert sum("the Preserver objects" in line for line in lines) == 1
