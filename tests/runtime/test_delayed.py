"""Schemes that delay, filter or step locally give bit for bit what a slow plain loop gives, wherever they are drained."""

from itertools import pairwise

import pytest
import torch
from torch import distributed, nn
from torch.optim.lr_scheduler import ExponentialLR

import ranks
from models import batch, cluster, differing, make_net, make_optimizer, parameters, train, workload
from reference import Reference

CASES = {
    "deft sum": ("deft", {"merge": "sum"}),
    "deft mean": ("deft", {"merge": "mean"}),
    "deft local": ("deft", {"correction": "local"}),
    "delayed_averaging": ("delayed_averaging", {}),
    "delayed_averaging 3": ("delayed_averaging", {"period": 3}),
    "local_sgd": ("local_sgd", {"period": 3}),
    "partial_sgd": ("partial_sgd", {"period": 3}),
    "dreamddp": ("dreamddp", {"period": 3}),
    "dreamddp forward": ("dreamddp", {"period": 3, "forward_overlap": "on"}),
    "dreamddp after the step": ("dreamddp", {"period": 3, "forward_overlap": "only"}),
    "covap": ("covap", {"interval": 3}),
}


def against_reference(rank, cases, optimizer, stops, links=1, us_per_byte=0.6, decay=1.0, clip=None):
    """For each case, the names of parameters that differ from the reference's after a drain at each of `stops`. `decay`:
    of the learning rate after each step; `clip`: the norm to which gradients are clipped before it."""
    import gradweave
    from gradweave import core

    wrong = {}
    for case, (scheme, options) in cases.items():
        for stop in stops:
            plan = core.make_plan(workload(), cluster(distributed.get_world_size(), us_per_byte, links), scheme, options)
            expected = make_net(seed=0)
            loop = Reference(expected, make_optimizer(optimizer, expected), plan, workload())
            rate = ExponentialLR(loop.optimizer, decay)
            for step in range(stop):
                loop.train_step(*batch(rank, step), clip=clip)
                rate.step()
            loop.drain()
            model = make_net(seed=0)
            given = [distributed.group.WORLD] + [distributed.new_group() for _ in range(links - 1)]
            model, stepper = gradweave.wrap(model, make_optimizer(optimizer, model), scheme, plan=plan, options=options,
                                            links=given, moments="local")
            rate = ExponentialLR(stepper, decay)
            for step in range(stop):
                train(model, stepper, rank, 1, first=step, clip=clip)
                rate.step()
            gradweave.finish(model)
            if differ := differing(model, expected):
                wrong[case, stop] = differ
            model.gradweave.close()
    return wrong


class Few(nn.Module):
    """Messages of one and of five elements."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Sequential(nn.Linear(1, 1, bias=False))
        self.out = nn.Linear(64, 5)

    def forward(self, x):
        return self.out(self.scale(x.flatten(1).unsqueeze(2)).squeeze(2))


def few(seed):
    torch.manual_seed(seed)
    return Few()


def decoupled(rank, scheme, make):
    """reduce_scatter in the backward, all_gather behind it, applied at the end or in the next forward."""
    import gradweave
    from gradweave import core

    load = workload(make(0))
    plan = core.make_plan(load, cluster(distributed.get_world_size(), 0.6), scheme)
    for iteration in plan["period"]:
        iteration["ops"] = [dict(op, collective=kind) for op in iteration["ops"] for kind in ("reduce_scatter", "all_gather")]
    expected = make(0)
    loop = Reference(expected, make_optimizer("sgd", expected), plan, load)
    for step in range(8):
        loop.train_step(*batch(rank, step))
    loop.drain()
    model = make(0)
    with gradweave.wrap(model, make_optimizer("sgd", model), plan=plan) as (model, optimizer):
        model.gradweave.record_timeline()
        train(model, optimizer, rank, 8)
        gradweave.finish(model)
        kinds = [span["kind"] for span in model.gradweave.timeline()["spans"]]
        assert kinds.count("op") == model.gradweave.counters["ops"]
        assert {"forward", "backward", "optimizer"} <= set(kinds)
    return max((parameters(model)[n] - value).abs().max().item() for n, value in parameters(expected).items())


@pytest.mark.parametrize("scheme, workers, make", [("p3", 2, make_net), ("ddp", 3, make_net), ("wfbp", 5, few)])
def test_reduce_scatter_and_all_gather_are_an_all_reduce(scheme, workers, make):
    # With two workers a sum has one order, hence the same bits.
    assert max(ranks.run(decoupled, workers, scheme=scheme, make=make)) <= (0 if workers == 2 else 1e-6)


def stepped_after_waits(rank):
    """[microseconds from a wait in the forward to the optimizer's span that follows] of a plan whose forward waits."""
    import gradweave
    from gradweave import core

    plan = core.make_plan(workload(), cluster(distributed.get_world_size(), 0.6), "p3")
    for iteration in plan["period"]:
        for op in iteration["ops"]:
            op["release"]["delay_us"] = 5000
    model = make_net(0)
    with gradweave.wrap(model, make_optimizer("sgd", model), plan=plan) as (model, optimizer):
        model.gradweave.record_timeline()
        train(model, optimizer, rank, 4)
        gradweave.finish(model)
        spans = sorted((span for span in model.gradweave.timeline()["spans"] if span["track"] == 0),
                       key=lambda span: span["begin_us"])
    return [after["begin_us"] - before["end_us"] for before, after in pairwise(spans)
            if (before["kind"], after["kind"]) == ("wait", "optimizer")]


def test_the_optimizers_span_begins_with_its_gradients_put_in_place():
    for gaps in ranks.run(stepped_after_waits, 2):
        assert gaps and set(gaps) == {0}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_two_workers_agree_with_the_reference(optimizer):
    for wrong in ranks.run(against_reference, 2, cases=CASES, optimizer=optimizer, stops=(1, 4, 9), decay=0.7):
        assert not wrong


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_clipped_gradients_of_ranks_that_step_on_their_own_agree_with_the_reference(optimizer):
    cases = {name: CASES[name] for name in ("delayed_averaging", "dreamddp after the step")}
    for wrong in ranks.run(against_reference, 2, cases=cases, optimizer=optimizer, stops=(4, 9), clip=0.1):
        assert not wrong


def test_three_workers_and_two_links_agree_with_the_reference():
    cases = {name: CASES[name] for name in ("deft sum", "deft local", "delayed_averaging")}
    cases |= {name: (name, {}) for name in ("sequential", "ddp", "p3")}
    for wrong in ranks.run(against_reference, 3, cases=cases, optimizer="sgd", stops=(3, 8), links=2):
        assert not wrong
