"""What a training loop may do around the wrapped model, compared with DistributedDataParallel where it can do the same."""

import contextlib
import copy
import warnings

import pytest
import torch
from torch import distributed, nn

import ranks
from models import batch, cluster, make_net, make_optimizer, parameters, train, workload

class Partly(nn.Module):
    """`never` is never used, `sometimes` only by rank 0; `tied` shares its weight with `first`."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.tied = nn.Linear(64, 64)
        self.tied.weight = self.first.weight
        self.sometimes = nn.Linear(64, 64)
        self.never = nn.Linear(64, 3)
        self.out = nn.Linear(64, 5)

    def forward(self, x, extra=False):
        x = torch.relu(self.tied(torch.relu(self.first(x.flatten(1)))))
        return self.out(self.sometimes(x) if extra else x)


def wrapped(model, optimizer, scheme, options=None, **arguments):
    import gradweave
    from gradweave import core

    load = workload(model) if isinstance(model, Partly) else workload()
    for layer in load["layers"]:  # a shared tensor belongs to the first layer that uses it
        layer["tensors"] = [t for t in layer["tensors"] if t["name"] in dict(model.named_parameters())]
    load["layers"] = [layer for layer in load["layers"] if layer["tensors"]]
    plan = core.make_plan(load, cluster(distributed.get_world_size()), scheme, options or {})
    return gradweave.wrap(model, optimizer, plan=plan, **arguments)


def unused_and_shared(rank, scheme):
    import gradweave

    results = []
    for parallel in (True, False):
        torch.manual_seed(rank)
        model = Partly()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        run = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True) if parallel else model
        if not parallel:
            # The plan's layers are in the order of the forward: those that do not run count to the whole model.
            run, optimizer = gradweave.wrap(model, optimizer, scheme=scheme, warm_up=1, profile_iterations=1)
        for step in range(8):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(run(x, extra=rank == 0 and step % 2 == 0), y).backward()
            optimizer.step()
        if not parallel:
            gradweave.finish(model)
            assert len(optimizer.state.get(model.never.weight, {})) == 0  # never stepped, not even by weight decay
        results.append(parameters(model))
    return [name for name in results[0] if not torch.equal(results[0][name], results[1][name])]


@pytest.mark.parametrize("scheme", ["ddp", "p3"])
def test_unused_and_shared_parameters_as_in_ddp(scheme):
    assert ranks.run(unused_and_shared, 2, scheme=scheme) == [[], []]


def busy_loop(rank, scheme):
    """Accumulation, an evaluation in between, hooks of the user's, a scheduler, clipping, a smaller last batch."""
    import gradweave

    results, seen = [], []
    for parallel in (True, False):
        norms = []
        model = make_net(seed=rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        early = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.8)
        counts = {"before": 0, "after": 0}
        model.wide.weight.register_post_accumulate_grad_hook(lambda p: counts.__setitem__("before", counts["before"] + 1))
        if parallel:
            run = nn.parallel.DistributedDataParallel(model)
        else:
            run, optimizer = wrapped(model, optimizer, scheme)
        late = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        model.wide.weight.register_post_accumulate_grad_hook(lambda p: counts.__setitem__("after", counts["after"] + 1))
        for step in range(10):
            optimizer.zero_grad(set_to_none=scheme == "p3" or step % 2 == 0)
            with run.no_sync():
                x, y = batch(rank, 100 + step)
                nn.functional.cross_entropy(run(x), y).backward()
            x, y = batch(rank, step, size=8 if step < 9 else 3)
            nn.functional.cross_entropy(run(x), y).backward()
            if parallel:
                norms.append(torch.nn.utils.clip_grad_norm_(run.parameters(), 0.5))
            elif scheme == "wfbp":
                norms.append(torch.nn.utils.clip_grad_norm_(run.parameters(), 0.5))
            else:
                norms.append(gradweave.clip_grad_norm_(run, 0.5))
            optimizer.step()
            early.step()
            late.step()
            if step % 3 == 0:
                model.eval()
                with torch.no_grad():
                    model(x)
                names = list(model.state_dict())
                assert names[0] == "conv.weight"
                model.train()
        if not parallel:
            gradweave.finish(model)
        assert counts == {"before": 20, "after": 20}
        seen.append((optimizer.param_groups[0]["lr"], norms))
        results.append(parameters(model))
    assert seen[0] == seen[1]
    return [name for name in results[0] if not torch.equal(results[0][name], results[1][name])]


@pytest.mark.parametrize("scheme", ["ddp", "wfbp", "p3", "dear"])
def test_a_busy_loop_as_in_ddp(scheme):
    assert ranks.run(busy_loop, 2, scheme=scheme) == [[], []]


def forward_overlap_rules(rank):
    import gradweave

    model = make_net()
    model, optimizer = wrapped(model, make_optimizer("sgd", model), "p3")
    x, y = batch(rank, 0)
    nn.functional.cross_entropy(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1e-3)
    try:
        optimizer.step()
    except gradweave.InvalidInput as error:
        return str(error)
    return "accepted"


def test_an_edit_of_a_gradient_that_is_on_its_way_is_refused():
    for message in ranks.run(forward_overlap_rules, 2):
        assert "changed between backward() and step()" in message and "clip_grad_norm_" in message


def second_backward(rank):
    model = make_net()
    model, optimizer = wrapped(model, make_optimizer("sgd", model), "delayed_averaging")
    x, y = batch(rank, 0)
    nn.functional.cross_entropy(model(x), y).backward()
    try:
        nn.functional.cross_entropy(model(x), y).backward()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "accepted"


def test_an_undeclared_second_backward_is_refused():
    for message in ranks.run(second_backward, 2):
        assert "second backward() before optimizer.step()" in message and "no_sync" in message


def copies(rank):
    """A wrapped model can be copied and saved as what it was."""
    import io

    model = make_net()
    model, optimizer = wrapped(model, make_optimizer("adamw", model), "ddp")
    train(model, optimizer, rank, 2)
    average = copy.deepcopy(model)
    assert type(average).__mro__[0].__module__ == "models" and not hasattr(average, "gradweave")
    average(batch(rank, 0)[0]).sum().backward()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file))
    train(model, optimizer, rank, 2, first=2)
    return parameters(model)


def test_copies_and_optimizer_state():
    first, second = ranks.run(copies, 2)
    assert all(torch.equal(first[name], second[name]) for name in first)


def clipped_averages(rank, options):
    import gradweave

    model = make_net()
    model, optimizer = wrapped(model, make_optimizer("sgd", model), "dreamddp", options=options)
    x, y = batch(rank, 0)
    nn.functional.cross_entropy(model(x), y).backward()
    try:
        gradweave.clip_grad_norm_(model, 1.0)
    except gradweave.InvalidInput as error:
        return str(error)
    return "accepted"


def test_clipping_is_refused_where_parameters_are_stepped_before_the_norm_is_known():
    for message in ranks.run(clipped_averages, 2, options={}):
        assert "in the backward, before the norm of the whole gradient is known" in message and "such as ddp" in message
    assert ranks.run(clipped_averages, 2, options={"forward_overlap": "only"}) == ["accepted", "accepted"]


def buffers(rank, broadcast_buffers):
    """Running statistics, in and after training, beside DistributedDataParallel's. Returns the others."""
    import gradweave

    wrong = []
    expected = make_net(seed=rank)
    parallel = nn.parallel.DistributedDataParallel(expected)
    stepped = make_optimizer("sgd", expected)
    model = make_net(seed=rank)
    model, optimizer = wrapped(model, make_optimizer("sgd", model), "ddp", broadcast_buffers=broadcast_buffers)
    for step in range(4):
        train(parallel, stepped, rank, 1, first=step)
        train(model, optimizer, rank, 1, first=step)
        for (name, value), (_, found) in zip(expected.named_buffers(), model.named_buffers()):
            if (broadcast_buffers or rank == 0) and not torch.equal(value, found):
                wrong.append((step, name))
    gradweave.finish(model)
    expected.eval()
    with torch.no_grad():
        answer = parallel(batch(0, 99)[0])  # broadcasts rank 0's buffers first
        model.eval()
        if not torch.equal(answer, model(batch(0, 99)[0])):
            wrong.append("evaluation")
    assert torch.equal(model.state_dict()["norm.running_mean"], expected.norm.running_mean)
    return wrong


@pytest.mark.parametrize("broadcast_buffers", [False, True])
def test_buffers_as_in_ddp(broadcast_buffers):
    # Without broadcasts rank 0's own are the same anyhow, and finish() makes the others equal.
    assert ranks.run(buffers, 2, broadcast_buffers=broadcast_buffers) == [[], []]


class Buffered(nn.Module):
    """Buffers: large and constant, assigned anew, changed through `.data`, by some ranks' batches only, and by late ones."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(64, 5)
        for name in ("mask", "assigned", "data", "seen", "late"):
            self.register_buffer(name, torch.zeros(300_000 if name == "mask" else 64))

    def forward(self, x, sees, is_late):
        x = x.flatten(1)
        if self.training:
            self.assigned = 0.9 * self.assigned + x.detach().mean(0)
            self.data.data.mul_(0.9).add_(x.detach().mean(0))
            if sees:
                self.seen += 1
            if is_late:
                self.late += 1
        return self.lin(x - self.assigned - self.data)


def wrapped_by_a_framework(model, late):
    """Its optimizer."""
    from gradweave.integrations.jobs import Jobs

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    jobs = Jobs("this test", {"scheme": "ddp", "timeout": 20, "warm_up": 1, "profile_iterations": 1}, evaluates_alone=late)
    jobs.expect(model)
    jobs.wrap([optimizer])
    return optimizer


@contextlib.contextmanager
def broadcasts(model):
    """Elements of each in this context."""
    control, sent = model.gradweave.control, []
    broadcast = control.broadcast
    control.broadcast = lambda tensors, *what: (sent.append(sum(each.numel() for each in tensors)), broadcast(tensors, *what))
    yield sent
    control.broadcast = broadcast


def followed(rank, late):
    """(buffers after each forward, elements of each broadcast, warnings) where frameworks ask for buffers as in DDP."""
    import gradweave

    model = Buffered()
    optimizer = wrapped_by_a_framework(model, late)
    found = []
    with warnings.catch_warnings(record=True) as told, broadcasts(model) as sent:
        warnings.simplefilter("always")
        for step in range(10):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x, sees=rank == step == 1, is_late=rank == 1 and step > 7), y).backward()
            optimizer.step()
            found.append({name: buffer.clone() for name, buffer in model.named_buffers()})
    gradweave.finish(model)
    found.append({name: buffer.clone() for name, buffer in model.named_buffers()})
    model.gradweave.close()
    return found, sent, [str(each.message) for each in told if "buffer" in str(each.message)]


@pytest.mark.parametrize("late", [False, True])
def test_buffers_that_training_changes_follow_rank_0s(late):
    (first, sent, told), (second, others_sent, others_told) = ranks.run(followed, 2, late=late)
    assert sent == others_sent == [300_256] + [192] * (8 if late else 9)
    assert told == [] and len(others_told) == 1 and "buffer 'late' has changed" in others_told[0]
    for mine, others in zip(first[:0 if late else -1], second):  # else they follow in the next forward
        assert all(torch.equal(mine[name], others[name]) for name in ("assigned", "data", "seen"))
    assert all(map(torch.equal, first[-1].values(), second[-1].values()))


def sent_of_small(rank):
    """Elements of each broadcast, where no buffer ever changes."""
    model = nn.Sequential(nn.Linear(64, 5))
    model.register_buffer("constant", torch.ones(7))
    optimizer = wrapped_by_a_framework(model, late=False)
    with broadcasts(model) as sent:
        for step in range(9):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.flatten(1)), y).backward()
            optimizer.step()
    model.gradweave.close()
    return sent


def test_small_buffers_are_sent_at_each_step():
    assert ranks.run(sent_of_small, 2) == [[7] * 9] * 2


def saves_alone(rank, schemes):
    """Rank 0 saves while the others wait for it."""
    wrong = []
    for scheme in schemes:
        model = make_net()
        model, optimizer = wrapped(model, make_optimizer("sgd", model), scheme, timeout=20.0)
        for step in range(0, 6, 2):
            train(model, optimizer, rank, 2, first=step)
            if rank == 0:
                model.state_dict()
                optimizer.state_dict()
                list(model.parameters())
            distributed.barrier()
        model.gradweave.finish()
        sums = torch.stack([p.detach().sum() for p in model.parameters()])
        other = sums.clone()
        distributed.broadcast(other, 0)
        if not torch.equal(sums, other):
            wrong.append(scheme)
        model.gradweave.close()
    return wrong


def test_one_rank_alone_may_save():
    from gradweave import core

    schemes = [row["name"] for row in core.schemes() if row["name"] != "auto"]
    assert ranks.run(saves_alone, 2, schemes=schemes) == [[], []]


def profiled(rank, scheme):
    """wrap() without a plan: profiles, probes, plans, switches; nothing is lost on the way."""
    import gradweave

    model = make_net(seed=rank)
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), scheme=scheme, warm_up=2, profile_iterations=3)
    train(model, optimizer, rank, 12)
    session = model.gradweave
    gradweave.finish(model)
    assert session.plan["scheme"] == scheme and session.prediction["iteration_us"] > 0
    assert [layer["name"] for layer in session.workload["layers"]] == ["conv", "norm", "wide", "again", "out"]
    assert all(layer["forward_us"] > 0 and layer["backward_us"] >= 0 for layer in session.workload["layers"])
    assert session.counters["iterations"] >= 12
    expected = make_net(seed=0 if rank == 0 else rank)
    parallel = nn.parallel.DistributedDataParallel(expected)
    train(parallel, make_optimizer("sgd", expected), rank, 12)
    return [n for n, value in parameters(expected).items() if not torch.equal(value, parameters(model)[n])]


@pytest.mark.parametrize("scheme", ["p3"])
def test_wrap_profiles_and_switches_without_losing_a_bit(scheme):
    assert ranks.run(profiled, 2, scheme=scheme) == [[], []]


def many_links(rank, links, schemes):
    """wrap() without a plan on several links: every link is measured and used, and ranks end equal."""
    import gradweave

    for scheme in schemes:
        groups = [gradweave.EmulatedLink(50, 0.01 * (k + 1), group=distributed.new_group(), name=f"link{k}")
                  if k else distributed.group.WORLD for k in range(links)]
        model = make_net(seed=rank)
        model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), scheme=scheme, links=groups, warm_up=1,
                                          profile_iterations=2)
        train(model, optimizer, rank, 10)
        gradweave.finish(model)
        session = model.gradweave
        assert len(session.cluster["links"]) == links and session.plan["scheme"] == scheme
        own = torch.cat([p.detach().flatten() for p in model.parameters()])
        first = own.clone()
        distributed.broadcast(first, 0)
        assert torch.equal(own, first), scheme
        session.close()
    return True


@pytest.mark.parametrize("workers, links", [(3, 3), (4, 2)])
def test_several_workers_and_links_from_profile_to_plan(workers, links):
    assert all(ranks.run(many_links, workers, links=links, schemes=["ddp", "deft", "delayed_averaging", "dear"]))
