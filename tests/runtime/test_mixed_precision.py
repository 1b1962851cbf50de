"""torch.amp.GradScaler: all ranks skip a step or none, whatever a plan delays, and the scale never shows in what is applied.

Scales are powers of two, so that scaled and unscaled training give the same bits.
"""

import contextlib
import math

import pytest
import torch
from torch import distributed, nn

import gradweave
import ranks
from models import batch, cluster, differing, links_cost, make_net, make_optimizer, parameters, workload
from reference import Reference
from test_delayed import CASES
from test_optimizers import Around
from test_parity import exact_schemes

OVERFLOW = {1: 0, 4: 1, 5: 1}  # step -> the rank whose loss is infinite there


def make_scaler():
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)


def factor(rank, step):
    return math.inf if OVERFLOW.get(step) == rank else 1.0


def train_scaled(model, optimizer, scaler, rank, steps, clip=None):
    """Scales after each step."""
    scales = []
    for step in range(steps):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y) * factor(rank, step)).backward()
        if clip:
            scaler.unscale_(optimizer)
            clip(model)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def as_ddp(rank, schemes, optimizer, clipped, around=lambda optimizer: optimizer):
    import gradweave
    from gradweave import core

    model = make_net(seed=rank)
    parallel = nn.parallel.DistributedDataParallel(model)
    clip = (lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5)) if clipped else None
    scales = train_scaled(parallel, make_optimizer(optimizer, model), make_scaler(), rank, 12, clip)
    assert len(set(scales)) > 2
    expected = parameters(model)
    clip = (lambda model: gradweave.clip_grad_norm_(model, 0.5)) if clipped else None
    wrong = []
    for scheme in schemes:
        model, scaler = make_net(seed=rank), make_scaler()
        plan = core.make_plan(workload(), cluster(2), scheme)
        stepper = around(make_optimizer(optimizer, model))
        with gradweave.wrap(model, stepper, plan=plan, scaler=scaler) as (model, stepper):
            assert train_scaled(model, stepper, scaler, rank, 12, clip) == scales
        found = parameters(model)
        wrong += [(scheme, name) for name in expected if not torch.equal(found[name], expected[name])]
    return wrong


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 6))

    def forward(self, h):
        return h + self.weight.unsqueeze(0)


class Embedded(nn.Module):
    """With one sample autograd makes the gradients of both embeddings views of the one that flows on to the first layer."""

    def __init__(self):
        super().__init__()
        self.first, self.positions, self.segments, self.last = nn.Linear(8, 6), Embedding(), Embedding(), nn.Linear(6, 3)

    def forward(self, x, embedded=True):
        h = self.first(x)
        return self.last(torch.tanh(self.segments(self.positions(h)) if embedded else h))


def train_embedded(model, optimizer, scaler, loop):
    parameters = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters))
    if loop == "views":
        for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.grad = part.view_as(p)
    for step in range(8):
        flat.zero_() if loop == "views" else optimizer.zero_grad()
        x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(step))
        if loop == "accumulated":
            with getattr(model, "no_sync", contextlib.nullcontext)():
                scaler.scale(model(x).square().mean()).backward()
            scaler.scale(model(x, embedded=False).square().mean()).backward()
        else:
            scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


def embedded_as_unscaled(rank, schemes, loop):
    """Schemes that don't give the bits of plain training without a scale, where all ranks have the same batches: those that
    correct steps later have nothing to correct then, and what was not sent shows too."""
    import gradweave
    from gradweave import core

    wrong = []
    for scheme in (None, *schemes):
        torch.manual_seed(0)
        model, scaler = Embedded(), torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scheme is not None)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if scheme is None:
            expected = model
            train_embedded(model, optimizer, scaler, loop)
            continue
        plan = core.make_plan(workload(model), cluster(2), scheme)
        with gradweave.wrap(model, optimizer, plan=plan, scaler=scaler, find_unused_parameters=True) as (model, optimizer):
            train_embedded(model, optimizer, scaler, loop)
        wrong += [(scheme, name) for name in differing(model, expected)]
    return wrong


@pytest.mark.parametrize("loop", ["zero_grad", "views", "accumulated"])
def test_a_gradient_whose_memory_others_have_is_unscaled_once(loop):
    schemes = ["dear", "us_byte", "delayed_averaging"]
    assert ranks.run(embedded_as_unscaled, 2, schemes=schemes, loop=loop) == [[], []]


def averaged_after_the_step(rank):
    """(scales, parameters) where some batches overflow on one rank and gradients are clipped."""
    import gradweave
    from gradweave import core

    plan = core.make_plan(workload(), cluster(2), "dreamddp", {"forward_overlap": "only", "period": 2})
    model, scaler = make_net(seed=0), make_scaler()
    with gradweave.wrap(model, make_optimizer("adamw", model), plan=plan, scaler=scaler) as (model, stepper):
        scales = train_scaled(model, stepper, scaler, rank, 12, lambda model: gradweave.clip_grad_norm_(model, 0.5))
    return scales, {name: value.tolist() for name, value in parameters(model).items()}


def test_averages_after_the_step_bear_a_loss_scale_and_clipping():
    one, other = ranks.run(averaged_after_the_step, 2)
    assert one == other and len(set(one[0])) > 2


@pytest.mark.parametrize("optimizer, clipped", [("sgd", False), ("adamw", True)])
def test_exact_schemes_skip_and_clip_as_ddp(optimizer, clipped):
    assert ranks.run(as_ddp, 2, schemes=exact_schemes(), optimizer=optimizer, clipped=clipped) == [[], []]


def test_a_scaler_steps_by_an_optimizer_around_the_wrapped_one():
    assert ranks.run(as_ddp, 2, schemes=["ddp", "dear", "us_byte"], optimizer="sgd", clipped=True, around=Around) == [[], []]


def as_reference(rank, cases, stops):
    import gradweave
    from gradweave import core

    wrong = []
    for case, (scheme, options) in cases.items():
        for stop in stops:
            plan = core.make_plan(workload(), cluster(2, 0.6), scheme, options)
            expected = make_net()
            loop = Reference(expected, make_optimizer("sgd", expected), plan, workload())
            for step in range(stop):
                loop.train_step(*batch(rank, step), factor=factor(rank, step), overflow=step in OVERFLOW)
            loop.drain()
            model, scaler = make_net(), make_scaler()
            model, stepper = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, scaler=scaler)
            train_scaled(model, stepper, scaler, rank, stop)
            gradweave.finish(model)
            wrong += [(case, stop, n, "not finite") for n, value in parameters(model).items() if not value.isfinite().all()]
            wrong += [(case, stop, n) for n in differing(model, expected)]
            model.gradweave.close()
    return wrong


def steps_seen(rank, schemes):
    """How often step() and its hooks ran where some batches overflow."""
    import gradweave
    from gradweave import core

    seen = {}
    for scheme in schemes:
        model, scaler = make_net(), make_scaler()
        plan = core.make_plan(workload(), cluster(2, 0.6), scheme)
        with gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, scaler=scaler) as (model, stepper):
            counts = seen[scheme] = dict.fromkeys(("step", "before", "after"), 0)

            def count(what, counts=counts):
                counts[what] += 1

            stepper.register_step_pre_hook(lambda *_, count=count: count("before"))
            stepper.register_step_post_hook(lambda *_, count=count: count("after"))
            own = stepper.step
            stepper.step = lambda own=own, count=count: (count("step"), own())  # as Accelerate learns of skipped steps
            train_scaled(model, stepper, scaler, rank, 8)
            del stepper.step
    return seen


def test_a_step_that_is_left_out_is_not_seen():
    schemes, made = ["ddp", "dear", "us_byte", "deft", "delayed_averaging"], 8 - len(OVERFLOW)
    expected = {scheme: {"step": made, "before": made, "after": made} for scheme in schemes}
    assert ranks.run(steps_seen, 2, schemes=schemes) == [expected] * 2


class Unlike(nn.Module):
    """Of two parts, one with far larger gradients."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.large, self.small = nn.Linear(64, 5), nn.Linear(64, 5)

    def forward(self, x):
        return self.large(x.flatten(1)) * 100 + self.small(x.flatten(1)) * 1e-3


def step_in_turns(scaler, optimizers, loss):
    """A step by the loss that loss() returns, of several optimizers in this order; the scale after it."""
    for each in optimizers:
        each.zero_grad()
    scaler.scale(loss()).backward()
    for each in optimizers:
        scaler.step(each)
    scaler.update()
    return scaler.get_scale()


def one_of_two_overflows(rank, schemes):
    """While the starter runs, as with DistributedDataParallel; [(scheme, what differs)]."""
    import gradweave

    links_cost()
    results = {}
    for scheme in (None, *schemes):
        model, scaler = Unlike(), torch.amp.GradScaler("cpu", init_scale=2.0**124)
        run, optimizers = model, [torch.optim.SGD(part.parameters(), lr=1e-3) for part in (model.large, model.small)]
        if scheme is None:
            run = nn.parallel.DistributedDataParallel(model)
        else:
            gradweave.wrap(model, optimizers, scheme, scaler=scaler, warm_up=3, profile_iterations=2, report=False)
        scales = []
        for step in range(8):
            x, y = batch(rank, step)
            order = optimizers[::-1] if step % 2 else optimizers
            scales.append(step_in_turns(scaler, order, lambda: nn.functional.cross_entropy(run(x), y)))
        if scheme is not None:
            gradweave.finish(model)
            model.gradweave.close()
        results[scheme] = scales, parameters(model)
    scales, expected = results.pop(None)
    assert scales[:3] == [2.0**123, 2.0**122, 2.0**121] and scales[-1] == scales[2]
    return [(scheme, name) for scheme, (found, values) in results.items() for name in expected
            if found != scales or not torch.equal(values[name], expected[name])]


def test_a_step_that_is_left_out_counts_where_optimizers_take_turns():
    assert ranks.run(one_of_two_overflows, 2, schemes=["ddp", "dear"]) == [[], []]


def with_a_parameter_of_no_model(rank, scheme):
    """The scales of a loop whose second optimizer steps one more, and that parameter in the end."""
    import gradweave

    links_cost()
    model, scaler, apart = Unlike(), torch.amp.GradScaler("cpu", init_scale=1024.0), nn.Parameter(torch.ones(()))
    optimizers = [torch.optim.SGD(model.large.parameters(), lr=1e-3),
                  torch.optim.SGD([*model.small.parameters(), apart], lr=0.25)]
    gradweave.wrap(model, optimizers, scheme, scaler=scaler, warm_up=1, profile_iterations=2, report=False)
    scales = []
    for step in range(6):
        x, y = batch(rank, step)
        factor = math.inf if step == 4 else 1
        scales.append(step_in_turns(scaler, optimizers, lambda: nn.functional.cross_entropy(model(x), y) + apart * factor))
    gradweave.finish(model)
    model.gradweave.close()
    return scales, apart.item()


def test_a_scaler_learns_of_parameters_of_no_model_too():
    expected = [1024.0] * 4 + [512.0] * 2, 1 - 5 * 0.25
    assert ranks.run(with_a_parameter_of_no_model, 2, scheme="deft") == [expected] * 2


def test_delayed_and_local_schemes_leave_out_what_is_not_finite():
    in_step = ("deft", "delayed_averaging", "covap")  # the others step in the backward
    cases = {name: case for name, case in CASES.items() if case[0] in in_step}
    assert ranks.run(as_reference, 2, cases=cases, stops=(5, 12)) == [[], []]


def refused(rank):
    import gradweave
    from gradweave import core

    messages = []
    for scheme, given in (("p3", False), ("deft", False), ("local_sgd", True)):
        model, scaler = make_net(), make_scaler()
        plan = core.make_plan(workload(), cluster(2, 0.6), scheme)
        model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, scaler=scaler if given else None)
        with pytest.raises(gradweave.InvalidInput) as error:
            train_scaled(model, optimizer, scaler, rank, 1)
        messages.append(str(error.value))
        model.gradweave.close(error.value)
    return messages


@pytest.mark.parametrize("scheme", ["dear", "us_byte"])
def test_excluded_parameters_lose_their_scale_too(scheme, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    expected, model, scaler = make_net(), make_net(), make_scaler()
    scales = train_scaled(expected, make_optimizer("sgd", expected), make_scaler(), 1, 12)
    first = next(name for name, _ in model.named_parameters())
    with gradweave.wrap(model, make_optimizer("sgd", model), scheme, exclude=[first], scaler=scaler, warm_up=1,
                        profile_iterations=1, report=False) as (model, optimizer):
        assert train_scaled(model, optimizer, scaler, 1, 12) == scales and len(set(scales)) > 2
        assert not model.gradweave.engine.synchronous
    assert differing(model, expected) == []


def test_what_a_scaler_cannot_do_is_an_error_with_a_remedy():
    for *unknown, backward in ranks.run(refused, 2):
        assert all("pass scaler= to gradweave.wrap()" in message for message in unknown)
        assert "before all gradients are known to be finite" in backward and "bfloat16" in backward


def saved(rank):
    import io

    import gradweave
    from gradweave import core

    model, scaler = make_net(), make_scaler()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    plan = core.make_plan(workload(), cluster(2, 0.6), "deft")
    with gradweave.wrap(model, optimizer, plan=plan, scaler=scaler) as (model, optimizer):
        train_scaled(model, optimizer, scaler, rank, 6)
    file = io.BytesIO()
    torch.save(scaler, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is torch.amp.GradScaler
    return parameters(model)


def test_fused_optimizers_and_saved_scalers():
    first, second = ranks.run(saved, 2)
    assert all(torch.equal(first[name], second[name]) and value.isfinite().all() for name, value in first.items())
