"""What a loop does to gradients and parameters between backward(), step() and the next forward: it means what it means
with DistributedDataParallel, or it is an error with a remedy."""

import time

import pytest
import torch
from torch import distributed, nn

import ranks
from models import batch, cluster, differing, make_net, make_optimizer, parameters, workload
from reference import Reference
from test_delayed import CASES

DROPPED = {2, 3, 6}
EXACT = ["ddp", "wfbp", "p3", "us_byte", "dear", "bytescheduler"]


def wrapped(scheme, rank=0, options=None, **arguments):
    import gradweave
    from gradweave import core

    model = make_net(seed=0)
    plan = core.make_plan(workload(), cluster(distributed.get_world_size(), 0.6), scheme, options or {})
    return gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=20.0, **arguments)


def backward(model, optimizer, rank, step):
    x, y = batch(rank, step)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()


def drop_by_step(model, optimizer):
    """The usual way."""
    optimizer.zero_grad()
    optimizer.step()


def drop_without_step(model, optimizer):
    optimizer.zero_grad()


def drop_by_skipping(model, optimizer):
    model.gradweave.skip_step()


WAYS = [drop_by_step, drop_without_step, drop_by_skipping]


def wrongly_trained(expected, rank, drop, scheme, options=None):
    """Parameters that are not those of `expected` after nine steps of which some are dropped."""
    import gradweave

    model, optimizer = wrapped(scheme, options=options)
    for step in range(9):
        backward(model, optimizer, rank, step)
        drop(model, optimizer) if step in DROPPED else optimizer.step()
    gradweave.finish(model)
    differ = differing(model, expected)
    model.gradweave.close()
    return differ


def as_ddp(rank, schemes):
    expected = make_net(seed=0)
    parallel, optimizer = nn.parallel.DistributedDataParallel(expected), make_optimizer("sgd", expected)
    for step in range(9):
        backward(parallel, optimizer, rank, step)
        if step not in DROPPED:
            optimizer.step()
    wrong = []
    for scheme in schemes:
        for drop in WAYS:
            wrong += [(scheme, drop.__name__, name) for name in wrongly_trained(expected, rank, drop, scheme)]
    return wrong


def test_a_dropped_batch_leaves_nothing_behind():
    assert ranks.run(as_ddp, 2, schemes=EXACT) == [[], []]


def dropped_before_the_plan(rank, schemes):
    """As as_ddp(), where the batches are dropped in the warm-up and while the loop is profiled."""
    import gradweave

    expected, wrong = make_net(seed=0), []
    parallel, optimizer = nn.parallel.DistributedDataParallel(expected), make_optimizer("sgd", expected)
    for step in range(9):
        backward(parallel, optimizer, rank, step)
        if step not in DROPPED:
            optimizer.step()
    for scheme in schemes:
        for drop in WAYS:
            model = make_net(seed=0)
            model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), scheme=scheme, warm_up=2,
                                              profile_iterations=6, timeout=20.0, report=False)
            for step in range(9):
                backward(model, optimizer, rank, step)
                drop(model, optimizer) if step in DROPPED else optimizer.step()
            gradweave.finish(model)
            wrong += [(scheme, drop.__name__, name) for name in differing(model, expected)]
            model.gradweave.close()
    return wrong


def test_a_batch_is_dropped_before_the_plan_is_in_force():
    assert ranks.run(dropped_before_the_plan, 2, schemes=["ddp", "dear"]) == [[], []]


def as_reference(rank, cases):
    """Plans that delay, filter or step locally: everything else that is on its way goes on."""
    from gradweave import core

    wrong = []
    for case, (scheme, options) in cases.items():
        for drop in WAYS:
            plan = core.make_plan(workload(), cluster(distributed.get_world_size(), 0.6), scheme, options)
            expected = make_net(seed=0)
            loop = Reference(expected, make_optimizer("sgd", expected), plan, workload())
            for step in range(9):
                loop.train_step(*batch(rank, step), overflow=step in DROPPED)
            loop.drain()
            wrong += [(case, drop.__name__, name) for name in wrongly_trained(expected, rank, drop, scheme, options)]
    return wrong


def test_a_dropped_batch_under_plans_that_delay():
    cases = {name: CASES[name] for name in ("deft sum", "deft mean", "deft local", "delayed_averaging", "covap")}
    assert ranks.run(as_reference, 2, cases=cases) == [[], []]


def kept(rank, schemes):
    wrong = []
    for scheme in schemes:
        model, optimizer = wrapped(scheme)
        own, copies = [], []
        for step in range(6):
            backward(model, optimizer, rank, step)
            gradients = [p.grad for p in model.parameters()]
            own.append(gradients)
            copies.append([g.clone() for g in gradients])
            optimizer.step()
        for step, (gradients, then) in enumerate(zip(own, copies)):
            wrong += [(scheme, step) for g, copy in zip(gradients, then) if not torch.equal(g, copy)]
        bytes_before = model.gradweave.counters["buffer_bytes"]
        for step in range(6, 12):
            backward(model, optimizer, rank, step)
            optimizer.step()
        assert model.gradweave.counters["buffer_bytes"] <= 2 * bytes_before
        model.gradweave.close()
    return wrong


def test_a_gradient_that_is_kept_is_the_callers():
    assert ranks.run(kept, 2, schemes=["ddp", "wfbp", "p3", "deft"]) == [[], []]


def closed_before_others(rank, schemes):
    """Rank 0 is done, and closes without finish(), while rank 1 has two iterations to go."""
    steps = {}
    for scheme in schemes:
        model, optimizer = wrapped(scheme)
        for step in range(6):
            if rank == 1 and step == 4:
                time.sleep(0.3)
            backward(model, optimizer, rank, step)
            optimizer.step()
        steps[scheme] = model.gradweave.counters["iterations"]
        model.gradweave.close()
    return steps


def test_a_rank_that_closes_early_leaves_no_other_waiting():
    from gradweave import core

    schemes = [row["name"] for row in core.schemes() if row["name"] != "auto"]
    for steps in ranks.run(closed_before_others, 2, schemes=schemes):
        assert steps == dict.fromkeys(schemes, 6)


def zeroed(model, optimizer):
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()


def some_removed(model, optimizer):
    model.out.weight.grad = None
    optimizer.step()


def clamped(model, optimizer):
    weight = model.wide.weight  # held from before: nobody sees that it is read
    optimizer.step()
    with torch.no_grad():
        weight.clamp_(-0.01, 0.01)
    model(batch(0, 0)[0])


def clamped_and_tried_again(model, optimizer):
    """The update that was refused is still to come."""
    try:
        clamped(model, optimizer)
    except ValueError:
        model(batch(0, 0)[0])


def stepped_in_backward(model, optimizer):
    optimizer.zero_grad()
    optimizer.step()


def skipped_twice(model, optimizer):
    model.gradweave.skip_step()
    model.gradweave.skip_step()


def passed_by(model, optimizer):
    weight, bias = model.out.weight, model.out.bias  # held from before: nobody sees that they are read
    optimizer.step()
    model.forward = lambda x: nn.functional.linear(
        model.wide(torch.relu(model.norm(model.conv(x))).flatten(1)), weight, bias)
    backward(model, optimizer, 0, 3)


def with_compiled_autograd(model, optimizer):
    optimizer.step()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        backward(model, optimizer, 0, 3)


REFUSED = [
    ("dear", passed_by, "its gradient was computed without its last update", "call the module itself"),
    ("ddp", with_compiled_autograd, "compiled autograd would hand gradients over without the engine", "switch it off"),
    ("p3", zeroed, "its gradient was changed between backward() and step()", "model.gradweave.skip_step()"),
    ("us_byte", some_removed, "its gradient was removed between backward() and step()", "set all gradients to None"),
    ("p3", clamped, "it was changed after step(), while its update was on its way", "model.gradweave.synchronize()"),
    ("p3", clamped_and_tried_again, "it was changed after step(), while its update was on its way", "synchronize()"),
    ("dreamddp", stepped_in_backward, "this batch can't be dropped", "look at the loss before backward()"),
    ("ddp", skipped_twice, "there is no gradient to drop", "in place of step()"),
]


def refused(rank):
    messages = []
    for scheme, act, *_ in REFUSED:
        distributed.barrier()
        model, optimizer = wrapped(scheme)
        for step in range(2):
            backward(model, optimizer, rank, step)
            optimizer.step()
        backward(model, optimizer, rank, 2)
        try:
            act(model, optimizer)
            messages.append("accepted")
        except (ValueError, RuntimeError) as error:  # torch makes the latter of what is raised in a backward
            messages.append(str(error))
        model.gradweave.close(error=RuntimeError("over"))
    return messages


def test_what_would_be_lost_is_an_error_with_a_remedy():
    for messages in ranks.run(refused, 2):
        for message, (scheme, act, fault, remedy) in zip(messages, REFUSED):
            assert fault in message and remedy in message, (scheme, act.__name__, message)
            no_iteration = (clamped, clamped_and_tried_again, skipped_twice, passed_by, with_compiled_autograd)
            assert "iteration 2" in message or act in no_iteration, (scheme, act.__name__, message)


def clamped_after_synchronize(rank):
    import gradweave

    results = []
    for parallel in (True, False):
        model = make_net(seed=0)
        optimizer = make_optimizer("sgd", model)
        run = nn.parallel.DistributedDataParallel(model) if parallel else None
        if not parallel:
            model, optimizer = wrapped("p3")
            run = model
        for step in range(5):
            backward(run, optimizer, rank, step)
            optimizer.step()
            if not parallel:
                model.gradweave.synchronize()
            with torch.no_grad():
                model.wide.weight.clamp_(-0.05, 0.05)
        if not parallel:
            gradweave.finish(model)
            assert model.gradweave.counters["updates"] == 5
        results.append(parameters(model))
    return [name for name in results[0] if not torch.equal(results[0][name], results[1][name])]


def test_parameters_may_be_changed_after_synchronize():
    assert ranks.run(clamped_after_synchronize, 2) == [[], []]


class Slope(nn.Module):
    """Its gradient is the data, whatever its parameters are."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 1, bias=False) for _ in range(3))

    def forward(self, x):
        return sum(layer(x) for layer in self.layers).sum()


def filtered(layers, period):
    """A plan that sends one layer in each iteration and leaves the others behind."""
    blocks = [{"tensor": f"layers.{l}.weight", "begin": 0, "end": 4} for l in range(layers)]
    iterations = []
    for sent in range(period):
        mine = [b for b in range(layers) if b % period == sent]
        iterations.append({
            "ops": [{"link": "net", "collective": "all_reduce", "blocks": [b], "merges": [0],
                     "release": {"point": "backward_end", "layer": b}} for b in reversed(mine)],
            "applies": [{"at": {"point": "iteration_end"}, "blocks": mine, "merges": [0], "source": "reduced_gradient"}],
            "dropped": [b for b in range(layers) if b not in mine]})
    return {"version": 1, "workers": 2, "blocks": blocks, "links": [{"name": "net", "concurrency": 1}], "period": iterations,
            "residual": {"initial": 1.0, "step": 0.0, "every": 1, "cap": 1.0} if period > 1 else None}


def residuals(rank):
    """Every gradient is applied once, though a plan with error feedback is drained, and replaced by others."""
    import gradweave

    plans = [filtered(3, 3), filtered(3, 2), filtered(3, 1)]
    torch.manual_seed(0)
    model = Slope()
    before, total = parameters(model), torch.zeros(4)
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), plan=plans[0])
    for step in range(12):
        if step in (2, 5):
            gradweave.finish(model)
        if step in (7, 10):
            model.gradweave.install(plans[step // 3 - 1])
        optimizer.zero_grad()
        model(torch.full((1, 4), float(2 * step + rank))).backward()
        total += 2 * step + 0.5
        optimizer.step()
    gradweave.finish(model)
    return [name for name, value in parameters(model).items() if not torch.allclose(before[name] - value, total, atol=1e-3)]


def test_residuals_outlive_a_drain_and_a_change_of_plan():
    assert ranks.run(residuals, 2) == [[], []]


def not_finite(rank):
    import gradweave

    model, optimizer = wrapped("delayed_averaging", check=True)
    try:
        for step in range(5):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            (loss * (float("nan") if rank == 1 and step == 3 else 1.0)).backward()
            optimizer.step()
    except (gradweave.InvalidInput, RuntimeError) as error:
        return str(error)
    return "accepted"


def test_a_gradient_that_is_not_finite_is_named_on_every_rank():
    for message in ranks.run(not_finite, 3):
        assert "a gradient is not finite" in message and "on rank 1" in message and "iteration 3" in message, message
