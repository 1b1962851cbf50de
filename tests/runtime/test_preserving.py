"""The Preserver on running jobs: what it finds in the gradients, and what `auto` then takes."""

import logging

import pytest
import torch
from torch import nn

import ranks

LINK = (100.0, 0.5)  # so slow that plans which change training are much faster
ITERATIONS = 24


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def batch(rank, step, data):
    """Ten classes, each around a point of its own. `data`: "shuffled", "disjoint" (this rank sees half of the classes), or
    "whole" (all of it in each batch)."""
    generator = torch.Generator().manual_seed(7)
    centres = torch.randn(10, 20, generator=generator)
    if data == "whole":
        return centres, torch.arange(10)
    generator.manual_seed(1000 * step + rank)
    y = torch.randint(0, 10, (64,), generator=generator) if data == "shuffled" else (
        torch.randint(0, 5, (64,), generator=generator) + 5 * rank)
    return centres[y] + 0.5 * torch.randn(64, 20, generator=generator), y


def train(rank, data, make, options, scheme="auto", **arguments):
    import gradweave

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("gradweave").addHandler(handler)
    model = net()
    optimizer = {"sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
                 "slow": lambda: torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9),
                 "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.001)}[make]()
    model, optimizer = gradweave.wrap(model, optimizer, scheme, links=gradweave.EmulatedLink(*LINK), options=options,
                                      profile_iterations=2, timeout=20, **arguments)
    for step in range(ITERATIONS):
        x, y = batch(rank, step, data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    plan = model.gradweave.plan
    gradweave.finish(model)
    model.gradweave.close()
    return plan.get("finding", {}).get("chosen", {}).get("effects", ["starter"]), lines


@pytest.mark.parametrize("make", ["sgd", "adamw"])
def test_workers_with_other_data_get_an_exact_plan(make):
    for data, differ in (("shuffled", False), ("disjoint", True)):
        (effects, lines), _ = ranks.run(train, 2, data=data, make=make, options={"allow": "exact+corrected"})
        assert (effects == ["exact"]) == differ
        assert any("learn from different data" in line for line in lines) == differ


def test_a_delay_is_refused_where_the_learning_rate_does_not_bear_it():
    for make, data, delayed in (("sgd", "shuffled", False), ("slow", "whole", True), ("adamw", "whole", False)):
        (effects, lines), _ = ranks.run(train, 2, data=data, make=make, options={"allow": "exact+delayed"})
        assert ("delayed" in effects) == delayed, (make, effects, "\n".join(lines))
        assert any("delays gradients" in line for line in lines) != delayed


def test_a_scheme_that_was_asked_for_is_taken_and_the_objection_told():
    (_, lines), _ = ranks.run(train, 2, data="shuffled", make="sgd", options=None, scheme="deft", warm_up=10)
    assert any("the Preserver objects: the plan delays gradients" in line for line in lines)
