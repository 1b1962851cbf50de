"""Adam on a part of the batch: steps divided by the second moment that the whole batch's gradient would have."""

import math

import pytest
import torch
from torch import distributed, nn
from torch.optim.lr_scheduler import ExponentialLR

import ranks
from models import batch, cluster, make_net, parameters, workload
from reference import Reference

SCHEMES = {
    "delayed_averaging": ("delayed_averaging", {"period": 2}),
    "averaged every time": ("local_sgd", {"period": 1}),
    "partial_sgd": ("partial_sgd", {"period": 3}),
    "dreamddp": ("dreamddp", {"period": 3}),
    "deft local": ("deft", {"correction": "local"}),
}


class Share:
    """src/runtime/moment_share.h's formula: of the gradients of each eighth iteration, from the next such on."""

    def __init__(self, parameters):
        self.parameters, self.taken = list(parameters), {}
        self.iterations, self.sums, self.next, self.value = 0, torch.zeros(2, dtype=torch.float64), None, 1.0

    def before_step(self, *_):
        self.taken |= {p: p.grad.clone() for p in self.parameters if p.grad is not None}

    def iteration_ended(self):
        if self.iterations % 8 == 0:
            if self.next is not None:
                self.sums = 0.999 ** 8 * self.sums + self.next
                self.value = float((self.sums[0] / self.sums[1]).clamp(1 / distributed.get_world_size(), 1))
            every = sum(p.numel() for p in self.parameters) // 4096
            gradients = [self.taken.get(p, torch.zeros_like(p)) for p in self.parameters]
            sample = torch.cat([g.as_strided((g.numel(),), (1,))[::every].double() for g in gradients])
            both = torch.cat([sample, sample.square().sum()[None]])
            distributed.all_reduce(both)
            both /= distributed.get_world_size()
            self.next = torch.stack([both[:-1].square().sum(), both[-1]])
        self.iterations, self.taken = self.iterations + 1, {}


class PlainAdam(torch.optim.Optimizer):
    """Adam and AdamW written from their definition. `share`: of the second moment that is the whole batch's; None: all."""

    def __init__(self, parameters, decoupled, share=None):
        self.decoupled, self.share = decoupled, share
        super().__init__(parameters, dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                g = p.grad if self.decoupled else p.grad + group["weight_decay"] * p
                if self.decoupled:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                t = state["t"] = state["t"] + 1
                m = state["m"].lerp_(g, 1 - beta1)  # rounded as torch rounds it
                v = state["v"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
                m, v = m / (1 - beta1 ** t), v / (1 - beta2 ** t)
                if self.share:
                    v = v * self.share.value
                p.sub_(group["lr"] * m / (v.sqrt() + group["eps"]))


def groups_of(model):
    """Hyperparameters differ by group; eps hides steps of gradients that are zero but for rounding."""
    weights = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    return [dict(params=weights, lr=0.01, weight_decay=0.1, eps=1e-4),
            dict(params=rest, lr=0.003, weight_decay=0.0, betas=(0.8, 0.99), eps=1e-3)]


def train_step(model, optimizer, rate, rank, step):
    x, y = batch(rank, step)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    rate.step()


def by_the_engine(rank, make, plan, steps, gamma=1.0, **options):
    """The parameters after so many steps with the optimizer that `make` makes for a model, and finish()."""
    import gradweave

    model = make_net(seed=0)
    model, optimizer = gradweave.wrap(model, make(model), plan=plan, **options)
    rate = ExponentialLR(optimizer, gamma)
    for step in range(steps):
        train_step(model, optimizer, rate, rank, step)
    gradweave.finish(model)
    found = parameters(model)
    model.gradweave.close()
    return found


def distance(own, other):
    return max((own[n] - value).abs().max().item() for n, value in other.items())


def as_measured(rank, kind):
    """By scheme: the largest difference from torch's own definition, from the one that measures, and the last share."""
    from gradweave import core

    found = {}
    for name, (scheme, options) in SCHEMES.items():
        plan = core.make_plan(workload(), cluster(distributed.get_world_size(), 0.6), scheme, options)
        after = []
        for measures in (False, True):
            expected = make_net(seed=0)
            share = Share(expected.parameters())
            adam = PlainAdam(groups_of(expected), kind is torch.optim.AdamW, measures and share)
            adam.register_step_pre_hook(share.before_step)
            rate = ExponentialLR(adam, 0.98)
            loop = Reference(expected, adam, plan, workload())
            for step in range(19):
                loop.train_step(*batch(rank, step))
                share.iteration_ended()
                rate.step()
            loop.drain()
            after.append(parameters(expected))
        own = by_the_engine(rank, lambda model: kind(groups_of(model)), plan, 19, gamma=0.98)
        found[name] = [*(distance(own, each) for each in after), share.value]
    return found


@pytest.mark.parametrize("kind, workers", [(torch.optim.AdamW, 2), (torch.optim.Adam, 3)])
def test_measured_moments_follow_the_definition(kind, workers):
    everyones = ranks.run(as_measured, workers, kind=kind)
    for found in everyones:
        assert set(found) == set(SCHEMES)
        for scheme, (from_local, difference, share) in found.items():
            assert difference < 2e-5 < 1e-3 < from_local, (scheme, found)
            assert 1 / workers <= share < 1


def left_as_torch_does(rank):
    """What isn't made as long as the whole batch's: bit for bit torch's."""
    from gradweave import core

    class Own(torch.optim.AdamW):
        pass

    plan = core.make_plan(workload(), cluster(2, 0.6), "delayed_averaging", {"period": 2})
    wrong = []
    for case, (make, chosen) in {"asked for": (lambda p: torch.optim.AdamW(p, lr=0.01), "local"),
                                 "amsgrad": (lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True), "measured"),
                                 "of another class": (lambda p: Own(p, lr=0.01), "measured"),
                                 "not Adam": (lambda p: torch.optim.NAdam(p, lr=0.01), "measured")}.items():
        expected = make_net(seed=0)
        loop = Reference(expected, make(expected.parameters()), plan, workload())
        for step in range(5):
            loop.train_step(*batch(rank, step))
        loop.drain()
        own = by_the_engine(rank, lambda model: make(model.parameters()), plan, 5, moments=chosen)
        wrong += [(case, n) for n, value in parameters(expected).items() if not torch.equal(own[n], value)]
    return wrong


def test_other_optimizers_and_moments_local_are_torchs():
    assert ranks.run(left_as_torch_does, 2) == [[], []]


def state_and_hooks(rank, implementation):
    """The state is torch's own after the same gradients, and goes on in torch's own optimizer. Hooks see the user's step."""
    import gradweave
    from gradweave import core

    plan = core.make_plan(workload(), cluster(2, 0.6), "delayed_averaging", {"period": 2})
    model, plain = make_net(seed=0), make_net(seed=0)
    make = lambda net: torch.optim.AdamW(groups_of(net), **implementation)  # noqa: E731
    beside = make(plain)
    model, optimizer = gradweave.wrap(model, make(model), plan=plan)
    seen = []
    optimizer.register_step_pre_hook(lambda o, *_: seen.append(("before", o.param_groups[0]["lr"])))
    optimizer.register_step_post_hook(lambda o, *_: seen.append(("after", o.param_groups[0]["lr"])))
    for step in range(3):
        with torch.no_grad():
            for p, q in zip(model.parameters(), plain.parameters()):
                q.copy_(p)
        x, y = batch(rank, step)
        for net, steps in ((model, optimizer), (plain, beside)):
            steps.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            steps.step()
    own, torchs = optimizer.state_dict(), beside.state_dict()
    assert own["param_groups"] == torchs["param_groups"]
    assert own["state"].keys() == torchs["state"].keys()
    for number, state in torchs["state"].items():
        assert own["state"][number].keys() == state.keys()
        assert all(torch.equal(own["state"][number][name], value) for name, value in state.items())
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters()))
    beside.load_state_dict(own)
    optimizer.load_state_dict(torchs)
    gradweave.finish(model)
    model.gradweave.close()
    return seen


@pytest.mark.parametrize("implementation", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_the_state_is_torchs(implementation):
    for seen in ranks.run(state_and_hooks, 2, implementation=implementation):
        assert seen == 3 * [("before", 0.01), ("after", 0.01)]


def with_a_scaler_and_others(rank):
    """Two optimizers, one parameter that is not communicated, a batch that overflows: skipped by all, state and all."""
    import gradweave
    from gradweave import core

    plan = core.make_plan(workload(), cluster(2, 0.6), "delayed_averaging", {"period": 2})
    model = make_net(seed=0)
    weights, rest = groups_of(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    model, optimizers = gradweave.wrap(model, [torch.optim.AdamW([weights]), torch.optim.SGD(rest["params"], lr=0.01)],
                                       plan=plan, scaler=scaler)
    for step in range(6):
        x, y = batch(rank, step)
        for each in optimizers:
            each.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y) * (math.inf if step == 3 and rank == 1 else 1)).backward()
        before = parameters(model)
        for each in optimizers:
            scaler.step(each)
        scaler.update()
        if step == 3:
            assert optimizers[0].state[model.wide.weight]["step"] == 3
            assert all(torch.isfinite(p).all() for p in model.parameters())
        else:
            assert any(not torch.equal(before[n], p) for n, p in model.named_parameters())
    assert optimizers[0].state[model.wide.weight]["step"] == 5
    gradweave.finish(model)  # all ranks equal, or it raises
    model.gradweave.close()


def test_scalers_and_several_optimizers():
    ranks.run(with_a_scaler_and_others, 2)


def killed(rank):
    import os
    import signal
    import time

    import gradweave
    from gradweave import core

    # One average in a hundred iterations, so that ranks meet in samples alone.
    plan = core.make_plan(workload(), cluster(2, 0.6), "local_sgd", {"period": 100})
    model = make_net(seed=0)
    model, optimizer = gradweave.wrap(model, torch.optim.AdamW(groups_of(model)), plan=plan, moments="measured", timeout=8)
    rate, begun = ExponentialLR(optimizer, 1.0), time.monotonic()
    try:
        for step in range(60):
            if rank == 1 and step == 7:
                os.kill(os.getpid(), signal.SIGKILL)
            train_step(model, optimizer, rate, rank, step)
    except RuntimeError as error:
        model.gradweave.close(error)
        torch.save((time.monotonic() - begun, step, str(error)), os.path.join(os.environ["JOB_FOLDER"], "raised"))
        os._exit(0)


def test_a_rank_that_is_killed_ends_the_other_at_a_sample():
    from pathlib import Path

    job = ranks.start(killed, 2)
    assert job.wait(0, 60) == 0, job.log(0)
    after, step, text = torch.load(Path(job.folder.name) / "raised")
    assert after < 8 + 2 and step <= 16 and "rank 1" in text, (after, step, text)
    job.end()


# ---- the share alone


def share_of_slices(rank):
    """Whole parameters give the same share as slices of them, a missing one counts as zeros, and a state goes on."""
    import gradweave
    generator = torch.Generator().manual_seed(rank)
    model = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in ((9000,), (30, 101), (7,))])
    wrapped, _ = gradweave.wrap(Sums(model), torch.optim.AdamW(model.parameters()))
    control, sizes = wrapped.gradweave.control, [9000, 3030, 7]
    whole, sliced = (control.moment_share(2, list(model)) for _ in range(2))
    shares = []
    for step in range(30):
        gradients = [torch.randn(size, generator=generator) + step * 0.1 for size in sizes]
        assert whole.samples == (step % 8 == 0)
        if whole.samples:
            for place, gradient in enumerate(gradients[:2 if rank and step else 3]):
                whole.take(place, 0, gradient)
                for begin, end in zip((0, 1, 5, 1201), (1, 5, 1201, len(gradient))) if place < 2 else [(0, 7)]:
                    sliced.take(place, begin, gradient[begin:end])
        for each in (whole, sliced):
            each.iteration_ended()
        if step == 12:
            resumed = control.moment_share(2, list(model))
            resumed.restore(sliced.state())
            sliced = resumed
        assert whole.share == sliced.share
        shares.append(whole.share)
    wrapped.gradweave.close()
    return shares


class Sums(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts


def test_slices_and_checkpoints_give_the_same_share():
    first, second = ranks.run(share_of_slices, 2)
    assert first == second
    assert first[:9] == [1.0] * 8 + [first[8]] and 0.5 <= first[8] < 0.6 < first[-1] < 1  # noise alone; then a mean besides


def test_a_gradient_that_is_not_finite_does_not_spoil_the_share():
    from gradweave import _native

    alone = _native.ControlGroup(_native.Peers(None, 0, 1, 60.0), None, None, torch.device("cpu"))
    share = _native.MomentShare(alone, 2, [4])
    for step in range(17):
        if share.samples:
            share.take(0, 0, torch.tensor([1.0, math.nan if step == 0 else 2.0, 3.0, 4.0]))
        share.iteration_ended()
        assert share.share == 1.0
    assert math.isfinite(sum(share.state()))


def test_an_unknown_choice_is_refused():
    import gradweave

    model = make_net()
    with pytest.raises(ValueError, match="moments='global': give one of measured, local"):
        gradweave.wrap(model, torch.optim.AdamW(model.parameters()), moments="global")
