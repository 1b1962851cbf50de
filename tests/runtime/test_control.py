"""The control of real jobs: what one rank alone can't do, and what an iteration of several passes takes."""

import time

import pytest
import torch
from torch import nn

import ranks
from models import batch, make_net, parameters

TIMEOUT_S = 60.0


def train(model, optimizer, rank, steps):
    for step in steps:
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def wrapped(scheme):
    import gradweave

    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return gradweave.wrap(model, optimizer, scheme, links=gradweave.EmulatedLink(2000, 0.3), warm_up=1, profile_iterations=2,
                          timeout=TIMEOUT_S)


def without_memory(call):
    """`call`, but for its second time, after the starter's: then there is no memory left."""
    times = []

    def limited(*arguments):
        times.append(arguments)
        if len(times) == 2:
            raise MemoryError("no room")
        return call(*arguments)
    return limited


def refuse_alone(rank, scheme, late):
    """Rank 1 runs out of memory for the first plan that is decided on, before it is in force or when it has just come into
    it."""
    model, optimizer = wrapped(scheme)
    session, lines = model.gradweave, ranks.lines_told()
    if rank == 1 and late:
        session.updates.plan_installed = without_memory(session.updates.plan_installed)
    elif rank == 1:
        session._refusal = without_memory(session._refusal)
    begin, said = time.monotonic(), ""
    try:
        train(model, optimizer, rank, range(8))
        session.finish()
    except ValueError as error:
        said = str(error)
    took = time.monotonic() - begin
    plan = session.plan
    session.close()
    return {"said": said, "took": took, "plan": plan, "lines": lines, "parameters": parameters(model)}


@pytest.mark.parametrize("late", [False, True])
def test_a_plan_that_one_rank_alone_refuses_is_passed_over_at_once(late):
    first, second = ranks.run(refuse_alone, 2, scheme="auto", late=late)
    assert first["said"] == second["said"] == ""
    assert first["plan"] == second["plan"]
    passed_over, in_force = first["lines"][:2]
    assert passed_over.endswith(" was not chosen: rank 1 can't put it into force: MemoryError: no room")
    assert in_force.startswith("in force: ") and in_force.split()[2].rstrip(":") != passed_over.split()[0]
    assert max(first["took"], second["took"]) < TIMEOUT_S / 2
    assert all(torch.equal(first["parameters"][name], value) for name, value in second["parameters"].items())


def test_the_rank_that_alone_refuses_the_only_plan_is_named_at_once_on_all():
    found = ranks.run(refuse_alone, 2, scheme="dear", late=False)
    for each in found:
        assert each["said"] == "rank 1 can't put it into force: MemoryError: no room"
        assert each["took"] < TIMEOUT_S / 2


PASSES, FORWARD_S, BACKWARD_S = 4, 0.004, 0.008


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        time.sleep(FORWARD_S)
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(BACKWARD_S)
        return gradient


class Timed(nn.Module):

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(Slow.apply(self.first(x)))


def accumulate(rank):
    import gradweave

    model = Timed()
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "ddp", follow=False, warm_up=1,
                                      profile_iterations=3, links=gradweave.EmulatedLink(100, 0.01), timeout=TIMEOUT_S)
    for step in range(30):
        optimizer.zero_grad()
        for number in range(PASSES):
            def backward():
                nn.functional.cross_entropy(model(torch.ones(2, 8)), torch.zeros(2, dtype=torch.long)).backward()
            if number + 1 < PASSES:
                with model.gradweave.no_sync():
                    backward()
            else:
                backward()
        optimizer.step()
    found = model.gradweave.workload, model.gradweave.prediction, model.gradweave.report()
    gradweave.finish(model)
    model.gradweave.close()
    return found


def test_all_passes_of_an_iteration_count_in_profile_prediction_and_report():
    least_us = 1e6 * PASSES * (FORWARD_S + BACKWARD_S)
    for workload, prediction, report in ranks.run(accumulate, 2):
        first, second = workload["layers"]
        assert sum(layer["forward_us"] + layer["backward_us"] for layer in (first, second)) >= least_us
        assert prediction["iteration_us"] >= least_us
        # Only the last backward overlaps with what is sent: the passes before are compute in the forward.
        assert second["forward_us"] >= least_us - 1e6 * (FORWARD_S + BACKWARD_S)
        assert report["measured"]["forward_us"] >= least_us - 1e6 * BACKWARD_S
